"""One training run on one machine: spawn the processes, restart what dies, move the run through its
phases.
"""

from harnessgym.supervisor.preparation import claim_folder, prepare
from harnessgym.supervisor.supervisor import Supervisor

__all__ = ["Supervisor", "claim_folder", "prepare"]
