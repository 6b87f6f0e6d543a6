"""Plan, simulate and run hierarchical split federated learning.

import hsfl

scenario = hsfl.load_scenario("paper")
result = hsfl.plan(scenario)
print(result.cuts, result.intervals, result.objective_s, result.gap)
"""

import importlib
from typing import TYPE_CHECKING, Any

from hsfl.api import backend, compare, estimate, evaluate, load_scenario, plan, plan_sweep, resume, run, train
from hsfl.errors import HsflError
from hsfl.planner.result import Evaluation, PlanResult
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.runs.callback import Callback, StopTraining
from hsfl.runs.reading import Run
from hsfl.scenario.catalog import scenario_names
from hsfl.scenario.scenario import Scenario
from hsfl.version import __version__

if TYPE_CHECKING:
    from hsfl import plot
    from hsfl.explorer.notebook import explore
    from hsfl.report.live import LiveLine as Progress
    from hsfl.report.sweeps import sweep

#: What is imported only when it is used.
_LATER = {
    "Progress": "hsfl.report.live:LiveLine",
    "explore": "hsfl.explorer.notebook:explore",
    "plot": "hsfl.plot",
    "sweep": "hsfl.report.sweeps:sweep",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'hsfl' has no attribute {name!r}")
    module, _, attribute = _LATER[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


__all__ = [
    "Callback",
    "Evaluation",
    "HsflError",
    "Plan",
    "PlanResult",
    "Problem",
    "Progress",
    "Run",
    "Scenario",
    "StopTraining",
    "__version__",
    "backend",
    "compare",
    "estimate",
    "evaluate",
    "explore",
    "load_scenario",
    "plan",
    "plan_sweep",
    "plot",
    "resume",
    "run",
    "scenario_names",
    "sweep",
    "train",
]
