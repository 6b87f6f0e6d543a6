"""Plan, simulate and run hierarchical split federated learning.

import hsfl

scenario = hsfl.load_scenario("paper")
result = hsfl.plan(scenario)
print(result.cuts, result.intervals, result.objective_s, result.gap)
"""

from hsfl.api import backend, compare, estimate, evaluate, load_scenario, plan, resume, train
from hsfl.errors import HsflError
from hsfl.planner.result import Evaluation, PlanResult
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.scenario import Scenario, scenario_names
from hsfl.runs.callback import Callback
from hsfl.runs.run import Run

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "Evaluation",
    "HsflError",
    "Plan",
    "PlanResult",
    "Problem",
    "Run",
    "Scenario",
    "backend",
    "compare",
    "estimate",
    "evaluate",
    "load_scenario",
    "plan",
    "resume",
    "scenario_names",
    "train",
]
