"""The hsfl command: its modules register their commands."""

from hsfl.cli import experiments, exploring, planning, running, sweeping, training
from hsfl.cli.common import app
from hsfl.cli.ending import main

__all__ = ["app", "experiments", "exploring", "main", "planning", "running", "sweeping", "training"]
