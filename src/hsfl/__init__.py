"""Plan, simulate and run hierarchical split federated learning.

import hsfl

scenario = hsfl.load_scenario("paper")
result = hsfl.plan(scenario)
print(result.cuts, result.intervals, result.objective_s, result.gap)
"""

from hsfl.api import backend, compare, evaluate, load_scenario, plan
from hsfl.errors import HsflError
from hsfl.planner.result import Evaluation, PlanResult
from hsfl.problem.plan import Plan
from hsfl.problem.scenario import Scenario, scenario_names

__version__ = "0.1.0"

__all__ = [
    "Evaluation",
    "HsflError",
    "Plan",
    "PlanResult",
    "Scenario",
    "backend",
    "compare",
    "evaluate",
    "load_scenario",
    "plan",
    "scenario_names",
]
