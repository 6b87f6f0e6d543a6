"""The hsfl command: its modules register their commands."""

from hsfl.cli import planning, training
from hsfl.cli.common import app, main

__all__ = ["app", "main", "planning", "training"]
