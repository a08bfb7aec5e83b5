"""Without TRL the bridge says what to install, and the rest of the package does not miss it."""

import subprocess
import sys


def test_a_missing_trl_is_named_with_the_command_that_installs_it():
    code = "import sys; sys.modules['trl'] = None; import trainers.grpo; import trainers.trl_bridge"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ConfigError" in done.stderr
    assert "pip install 'harnessgym-rl[trl]'" in done.stderr
