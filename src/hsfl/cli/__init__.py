"""The hsfl command: its modules register their commands."""

from hsfl.cli import experiments, planning, running, training
from hsfl.cli.common import app
from hsfl.cli.ending import main

__all__ = ["app", "experiments", "main", "planning", "running", "training"]
