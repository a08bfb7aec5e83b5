"""Supervises one training run: spawns its processes, restarts those that die, advances its phases."""

from harnessgym.supervisor.preparation import claim_folder, prepare
from harnessgym.supervisor.run_start import RunStart, start_run
from harnessgym.supervisor.supervisor import Supervisor

__all__ = ["RunStart", "Supervisor", "claim_folder", "prepare", "start_run"]
