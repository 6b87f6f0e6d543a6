"""The colours of tiers and runs, the same in the terminal, in plots and on pages.

They are Okabe and Ito's, which the colour-blind can tell apart, without their yellow.
"""

from __future__ import annotations

TIERS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#0072B2")
RUNS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def tier_colour(tier: int) -> str:
    """The colour of a tier, counted from 0; a seventh has that of the first."""
    return TIERS[tier % len(TIERS)]
