"""Who chooses cuts and intervals while training: small objects that propose a plan whenever they are asked.

A strategy is given the problem as it stands (the machines of the moment, the profile, the constants as known), the plan
in force and the round. It keeps no state, so that a run can be resumed: what it draws, it draws from its seed and the
round. `hsfl.problem.strategy.Strategy` says what one has to have.
"""

from hsfl.strategies.make import NAMES, checked, fixed, make_strategy
from hsfl.strategies.named import Named

__all__ = ["NAMES", "Named", "checked", "fixed", "make_strategy"]
