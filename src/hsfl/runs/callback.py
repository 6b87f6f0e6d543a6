"""How to listen to a training run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hsfl.errors import HsflError
from hsfl.records import PlanRecord, RoundRecord, Summary
from hsfl.scenario.scenario import Scenario


class Callback:
    """Hears what happens while training; override what you want to hear. Records are those of the run folder."""

    def on_start(self, folder: Path, scenario: Scenario, round_: int) -> None:
        """Before the first round after `round_`, which is 0 unless a run is resumed."""

    def on_plan(self, record: PlanRecord) -> None: ...

    def on_round(self, record: RoundRecord) -> None:
        """After every round; in an evaluated one, accuracy and test_loss are not None."""

    def on_end(self, summary: Summary) -> None:
        """When training has ended by itself."""

    def on_stop(self) -> None:
        """At the very end, however it came."""


def checked_callbacks(given: Iterable[Callback]) -> Sequence[Callback]:
    """Callbacks as training takes them; HsflError for anything else."""
    found = list(given) if isinstance(given, Iterable) else [given]
    for callback in found:
        if not isinstance(callback, Callback) or not isinstance(given, Iterable):
            raise HsflError(f"callbacks: {callback!r} is given; give a list of objects of subclasses of hsfl.Callback")
    return found
