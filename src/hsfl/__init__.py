"""Plan, simulate and run hierarchical split federated learning.

import hsfl

scenario = hsfl.load_scenario("paper")
result = hsfl.plan(scenario)
print(result.cuts, result.intervals, result.objective_s, result.gap)
"""

from hsfl.api import backend, compare, estimate, evaluate, load_scenario, plan, resume, run, sweep, train
from hsfl.errors import HsflError
from hsfl.planner.result import Evaluation, PlanResult
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.runs.callback import Callback
from hsfl.runs.reading import Run
from hsfl.scenario.catalog import scenario_names
from hsfl.scenario.scenario import Scenario
from hsfl.version import __version__

__all__ = [
    "Callback",
    "Evaluation",
    "HsflError",
    "Plan",
    "PlanResult",
    "Problem",
    "Run",
    "Scenario",
    "__version__",
    "backend",
    "compare",
    "estimate",
    "evaluate",
    "load_scenario",
    "plan",
    "resume",
    "run",
    "scenario_names",
    "sweep",
    "train",
]
