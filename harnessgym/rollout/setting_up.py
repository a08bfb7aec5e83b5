"""A task's setup phase: its commands, in the sandbox, before the harness; only here may listed hosts be reached."""

from harnessgym.outcome.failure import Cause, RolloutFailed
from harnessgym.sandbox import Sandbox
from harnessgym.sandboxes.egress import Egress
from harnessgym.task import Setup

_TAIL = 2_000


async def set_up(setup: Setup, sandbox: Sandbox, where: str) -> None:
    """Run setup commands in order; `where` names their task. Raises `RolloutFailed` when one fails, or their time is over."""
    egress = Egress(setup.hosts) if setup.hosts else None
    left = setup.timeout_s
    for command in setup.run:
        result = await sandbox.exec(command, timeout_s=max(left, 0.001), outside=egress)
        left -= result.wall_s
        if result.ok:
            continue
        how = f"ended with status {result.exit_code}" if result.signal is None else f"ended by signal {result.signal}"
        if result.timed_out:
            how = f"was not done within the {setup.timeout_s:.0f} s that setup may take"
        tail = (result.stderr or result.stdout)[-_TAIL:].decode(errors="replace").strip()
        raise RolloutFailed(
            Cause.SETUP_FAILED,
            f"The setup command `{' '.join(command)}` of {where} {how}. Its last output:\n{tail or '(none)'}",
        )
