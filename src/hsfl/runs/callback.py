"""How to listen to a training run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hsfl.errors import HsflError
from hsfl.records import PlanRecord, RoundRecord, Summary
from hsfl.scenario.scenario import Scenario

if TYPE_CHECKING:
    from torch import nn


class StopTraining(Exception):  # noqa: N818 - nothing has gone wrong
    """Raised in a callback: training ends after the round, as if a limit were reached, and the run says why."""


class Callback:
    """Hears what happens while training; override what you want to hear. Records are those of the run folder.

    `StopTraining("why")`, raised anywhere in it, ends training.
    """

    def on_start(self, folder: Path, scenario: Scenario, round_: int) -> None:
        """Before the first round after `round_`, which is 0 unless a run is resumed."""

    def on_plan(self, record: PlanRecord) -> None:
        """Whenever a plan is made, kept or shortened; the first time before the first round."""

    def on_round(self, record: RoundRecord) -> None:
        """After every round; in an evaluated one, test_loss is not None, nor is accuracy where targets are classes."""

    def on_evaluation(self, record: RoundRecord, model: Callable[[], nn.Module]) -> None:
        """After every evaluation, and after `on_round`; `model` makes the averaged model, a copy to be kept."""

    def on_end(self, summary: Summary) -> None:
        """When training has ended by itself."""

    def on_stop(self) -> None:
        """At the very end, however training ended."""


def checked_callbacks(given: Iterable[Callback]) -> Sequence[Callback]:
    """Callbacks as training takes them; HsflError for anything else."""
    found = list(given) if isinstance(given, Iterable) else [given]
    for callback in found:
        if not isinstance(callback, Callback) or not isinstance(given, Iterable):
            raise HsflError(f"callbacks: {callback!r} is given; give a list of objects of subclasses of hsfl.Callback")
    return found
