"""Who chooses cuts and intervals while training: small objects that propose a plan whenever they are asked.

A strategy is given the problem as it stands (the machines of the moment, the constants as known), the plan in force and
the round. It keeps no state, so that a run can be resumed: what it draws, it draws from its seed and the round.
"""

from hsfl.strategies.base import Fixed, Planned, make_strategy

__all__ = ["Fixed", "Planned", "make_strategy"]
