"""How to listen to a training run."""

from __future__ import annotations

from pathlib import Path

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
