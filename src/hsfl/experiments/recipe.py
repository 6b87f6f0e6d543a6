"""A recipe: which runs it needs, and what it shows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hsfl.experiments.result import Result
from hsfl.experiments.settings import Settings
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario

#: What tells a run from the others of its recipe; its parts are words for people, in order.
Key = tuple[Any, ...]
Wanted = dict[Key, Scenario]
Found = Mapping[Key, Run]


@dataclass(frozen=True)
class Recipe:
    """What `hsfl reproduce NAME` does."""

    name: str
    about: str
    show: Callable[[Settings, Found], Result]
    runs: Callable[[Settings], Wanted] = lambda settings: {}
    every_round: bool = False
    """Whether the recipe looks at all rounds of a run, not at evaluations and plans alone."""
    runs_of: str | None = None
    """The name of the recipe whose runs these are, where there is one."""
