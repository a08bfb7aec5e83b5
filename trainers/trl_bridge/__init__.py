"""TRL trains the policy of a run: bridges to its GRPOTrainer, its asynchronous trainer, and its trainers on
stored rows.

A leaf: nothing else imports it. It needs TRL, an optional package; see `docs/trl.md`.
"""

from importlib.util import find_spec

from harnessgym.errors import ConfigError

if find_spec("trl") is None:
    raise ConfigError(
        "The bridge to TRL needs trl, which is not installed: pip install 'harnessgym-rl[trl]'."
    )
