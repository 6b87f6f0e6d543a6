"""Pictures for notebooks and scripts: each function draws into a new figure of pyplot and returns its axes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsfl import api
from hsfl.errors import HsflError
from hsfl.planner.result import PlanResult
from hsfl.report import curves, plots
from hsfl.report import runs as pictures
from hsfl.report.labels import draw_samples
from hsfl.report.page import check
from hsfl.runs.reading import Run
from hsfl.runs.samples import scenario_samples
from hsfl.scenario.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def objective(scenario: api.SomeScenario, result: PlanResult | None = None) -> Axes:
    """The time to target over the cuts, each with its best intervals; `result` is planned where it is not given."""
    loaded = scenario if isinstance(scenario, Scenario) else api.load_scenario(scenario)
    planned = result or api.plan(loaded)
    figure = plots.draw_objective(
        loaded.problem, planned, allow_empty_tiers=planned.allow_empty_tiers, figure=plots.pyplot_figure(6.4, 5.2)
    )
    return figure.axes[0]


def plan_sweep(scenario: api.SomeScenario, field: str, values: Iterable[Any], **options: Any) -> list[Axes]:
    """Time to target, cuts and intervals against the values of a field; the options are those of `hsfl.plan`."""
    loaded = scenario if isinstance(scenario, Scenario) else api.load_scenario(scenario)
    tried = list(values)
    found = zip(tried, api.plan_sweep(loaded, field, tried, **options), strict=True)
    points = [(str(value), point) for value, point in found if isinstance(point, PlanResult)]
    return plots.draw_sweep(field, points, loaded.tier_names, plots.pyplot_figure(7.0, 7.0)).axes


def labels(of: Scenario | str | Path | Run, data: str | Path | None = None) -> list[Axes]:
    """How many samples of each label every client has, in a run or by a scenario, and how many in all.

    Where the targets of a scenario are numbers, the picture shows how they are spread. `data` is a folder with data
    sets.
    """
    if isinstance(of, Run):
        check([of])
        if of.labels is None:
            raise HsflError(f"{of.name}: its data have no one label per sample, so that there is nothing to draw")
        return draw_samples(of.labels, plots.pyplot_figure(6, 6)).axes
    loaded = of if isinstance(of, Scenario) else api.load_scenario(of)
    found = scenario_samples(loaded, None if data is None else Path(data))
    return draw_samples(found, plots.pyplot_figure(6, 6)).axes


def accuracy(*runs: Run, log_time: bool = False) -> list[Axes]:
    """Test accuracy of runs against time, rounds and bytes; of runs that differ in seeds only, mean and range."""
    check(runs)
    return curves.draw_accuracy(runs, plots.pyplot_figure(13, 4.6), log_time=log_time).axes


def loss(*runs: Run, log_time: bool = False) -> list[Axes]:
    """Training and test loss of runs against time, rounds and bytes; mean and range of those that differ in seeds."""
    check(runs)
    return curves.draw_loss(runs, plots.pyplot_figure(13, 8), log_time=log_time).axes


def plans(run: Run) -> list[Axes]:
    """The layers of every tier and the rounds between averages, as the plan of a run changed."""
    check([run])
    return pictures.draw_plans(run, plots.pyplot_figure(10, 6.4)).axes


def drift(run: Run) -> list[Axes]:
    """How far the copies of every tier had drifted apart before its averages, measured and predicted."""
    check([run])
    return pictures.draw_drift(run, plots.pyplot_figure(11, 4.8)).axes
