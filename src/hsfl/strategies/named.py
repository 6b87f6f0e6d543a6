"""The strategies of the paper's experiments: each a way to choose intervals and a way to choose cuts.

| name     | intervals                                | cuts                                        |
|----------|------------------------------------------|---------------------------------------------|
| HSFL     | planned, together with the cuts          | planned, together with the intervals        |
| RMA+MS   | random                                   | planned for them                            |
| MA+RMS   | planned for the cuts                     | random                                      |
| RMA+RMS  | random                                   | random                                      |
| DAMA+RMS | depth-aware                              | random                                      |
| RMA+AMS  | random                                   | fastest round, averages left aside          |
| RMA+AMS-averages | random                           | fastest round, averages counted             |
| PSL      | never averaged                           | given                                       |
| FedAvg   | of the devices: local steps              | after the last layer: all on the devices    |
| fixed    | given                                    | given                                       |

MA and MS are the model aggregation and model splitting of the paper; R is random, DA depth-aware, A adaptive.

- Planned: the planner's optimum for the machines of the moment and the constants as measured. But with any drift model
  other than the paper's no interval grows to more than twice its last value from one plan to the next. Where drift is
  weighed against the loss, an interval is at most 8, or a quarter of the rounds so far. Until the loss has fallen to
  60 % of the first one, drift is there taken to be at least what the first gradients say, systematic drift counts 15
  times, unless plans without that have rounds at least 1.75 times as short as full synchronisation, and intervals are
  at most 8, unless longer ones make rounds at least 1.3 times as short. HSFL keeps cuts or intervals that are given and
  plans the rest (the paper's ablations). Where random intervals keep every cut vector from the target, RMA+MS takes the
  best cuts for the target doubled as often as it takes.
- Random: every interval uniform in 1..25, cuts distinct and uniform in 3..14 of VGG-16's 16 layers (3..L-2 in
  general), as far as memories allow, drawn anew at every plan from a seed of their own.
- Depth-aware (DAMA) adapts AiFed (You et al., 2023), where shallow layers upload in every round and deep layers only
  in the last D of every P rounds (P = 10, D = 8 for CIFAR-10). Here, synchronously and by tier: the devices' tier is
  averaged in every round, deeper tiers in the last 8 of every 10. It ignores convergence and cost, which is its point.
- Fastest round (AMS) adapts CoopFL (Wang et al., 2023): the cuts with the least latency of the slowest client's round
  that fit the memories, found exactly; averaging and convergence are left aside. That leaves most of the model below
  the cloud where links are fast, and averages then take longer than rounds. RMA+AMS-averages is the variant that
  counts them: the cuts with the least mean latency of a round with its averages, at the intervals drawn.
- PSL is parallel split learning: sub-models are never averaged.
- FedAvg (McMahan et al., 2017) is the special case without a split: every device trains the whole model, and after
  so many local steps, each a round, the mean of all of them goes on.
- Codes of links and the number of mini-batches in a round, where they are left to the planner, are planned by all of
  them, for the cuts and intervals that they choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsfl.errors import InfeasibleError
from hsfl.planner.baselines import convergence_aside, fastest_round_cuts, random_cuts, random_intervals
from hsfl.planner.corrected import corrected_gain
from hsfl.planner.exact import ExactSolver, Solution
from hsfl.planner.micro_batches import best_of_all
from hsfl.planner.solve import completed, solve
from hsfl.planner.terms import Terms
from hsfl.problem.plan import NEVER, Plan
from hsfl.problem.problem import Problem
from hsfl.theory.latency import round_latency

PLANNED, RANDOM, DEPTH_AWARE, NEVER_AVERAGED, FASTEST = "planned", "random", "depth-aware", "never", "fastest"
FASTEST_AVERAGED = "fastest, averages counted"
LOCAL_STEPS, ON_DEVICES = "local steps", "on the devices"
#: How each strategy chooses intervals and cuts, by its name; None where they are given.
CHOICES: dict[str, tuple[str | None, str | None]] = {
    "HSFL": (PLANNED, PLANNED),
    "RMA+MS": (RANDOM, PLANNED),
    "MA+RMS": (PLANNED, RANDOM),
    "RMA+RMS": (RANDOM, RANDOM),
    "DAMA+RMS": (DEPTH_AWARE, RANDOM),
    "RMA+AMS": (RANDOM, FASTEST),
    "RMA+AMS-averages": (RANDOM, FASTEST_AVERAGED),
    "PSL": (NEVER_AVERAGED, None),
    "FedAvg": (LOCAL_STEPS, ON_DEVICES),
    "fixed": (None, None),
}
#: AiFed's P and D: deep layers are averaged in the last D of every P rounds.
PERIOD, UPLOADS = 10, 8
#: From one plan to the next an interval grows at most so many times: what is measured holds near where it was measured.
#: On the first plateau gradients are tiny; the intervals that they allow would ruin training once it leaves it.
GROWTH = 2
#: Where drift is weighed against the loss, an interval is at most as long as this part of the rounds so far, which is
#: what tells of drift, or `FIRST`, for at first nothing does.
AHEAD, FIRST = 0.25, 8
#: Until training has begun to learn, intervals longer than `FIRST` must make rounds so many times as short.
SHORTER = 1.3
#: Until training has begun to learn systematic drift counts so many times, unless rounds are at least so many times as
#: short as those of full synchronisation without that: copies that go different ways do not leave a plateau together.
EARLY, PAYS = 15.0, 1.75
#: Sets what strategies draw apart from everything that training draws with the same seed.
_STREAM = 5


@dataclass(frozen=True)
class Named:
    """One of `CHOICES`, or any other combination: intervals and cuts are given, or say how they are chosen."""

    name: str
    intervals: Sequence[int] | str
    cuts: Sequence[int] | str
    seed: int = 0
    """The seed of what is drawn at random."""
    planner: str = "exact"
    """The method, "exact" or "bcd", by which intervals and cuts are planned together."""
    allow_empty_tiers: bool = False
    plans_codes: bool = False
    """Whether codes are left to the planner, too."""
    plans_micro_batches: bool = False
    """Whether the number of mini-batches in a round is."""
    may_correct: bool = False
    """Whether averages are plain and could be corrected."""
    local_steps: int = 1
    """The devices' interval where it is that of local steps, in rounds."""

    @property
    def replans(self) -> bool:
        return self._plans_more or any(
            c in (PLANNED, RANDOM, FASTEST, FASTEST_AVERAGED) for c in (self.intervals, self.cuts)
        )

    @property
    def needs_constants(self) -> bool:
        return self._plans_more or PLANNED in (self.intervals, self.cuts)

    @property
    def _plans_more(self) -> bool:
        return self.plans_codes or self.plans_micro_batches

    @property
    def guarded(self) -> bool:
        """Whether intervals may be shortened between plans, as planned ones may."""
        return self.intervals == PLANNED

    def propose(self, problem: Problem, current: Plan | None, round_: int) -> Plan:
        if self.intervals == self.cuts == PLANNED:
            plan = self._planned(problem)
            limited = self._within_reach(plan.intervals, current, problem, round_)
            return plan if limited == plan.intervals else self._best(problem, limited)
        rng = np.random.default_rng([self.seed, _STREAM, round_])
        if self.cuts == PLANNED:
            return self._best(problem, self._intervals(problem, rng))
        if self.cuts == FASTEST_AVERAGED:
            intervals = self._intervals(problem, rng)
            plan = Plan(fastest_round_cuts(problem, intervals, allow_empty_tiers=self.allow_empty_tiers), intervals)
            return completed(problem, plan) if self._plans_more else plan
        cuts = self._cuts(problem, rng)
        if self.intervals == PLANNED:
            plan = self._planned(problem, cuts)
            intervals = self._within_reach(plan.intervals, current, problem, round_, cuts)
        else:
            intervals = self._intervals(problem, rng)
        plan = Plan(cuts, intervals)
        return completed(problem, plan) if self._plans_more else plan

    def _planned(self, problem: Problem, cuts: tuple[int, ...] | None = None) -> Plan:
        """The best plan, at given cuts if there are any; with care until training has begun to learn."""

        def best(one: Problem) -> Plan:
            if cuts is None:
                return solve(one, self.planner, allow_empty_tiers=self.allow_empty_tiers).plan
            return self._solved(one, cuts=cuts)

        plan = best(problem)
        if problem.constants.first_gradients is None or not problem.constants.by_loss:
            return plan
        now = problem.as_planned(plan)
        careful = replace(problem, constants=problem.constants.with_dissimilarity_times(EARLY))
        always = (1,) * len(plan.intervals)
        there = fastest_round_cuts(now, always, allow_empty_tiers=self.allow_empty_tiers) if cuts is None else cuts
        whole_s, own_s = round_latency(now, there, always), round_latency(now, plan.cuts, plan.intervals)
        return plan if whole_s >= PAYS * own_s else best(careful)

    def _within_reach(
        self,
        intervals: tuple[int, ...],
        current: Plan | None,
        problem: Problem,
        round_: int,
        cuts: tuple[int, ...] | None = None,
    ) -> tuple[int, ...]:
        """Intervals, no longer than what is known of drift reaches: at most `GROWTH` times those in force.

        And where drift is weighed against the loss at most `AHEAD` of the rounds so far, or `FIRST`, and no more than
        that until training has begun to learn, unless it pays. Plans by the paper's bound stay as they are.
        """
        constants = problem.constants
        if constants.drift == "paper":
            return intervals
        if constants.by_loss:
            longest = max(FIRST, int(AHEAD * round_))
            intervals = tuple(min(i, longest) for i in intervals)
        if current is not None:
            intervals = tuple(min(new, GROWTH * old) for new, old in zip(intervals, current.intervals, strict=True))
        short = tuple(min(i, FIRST) for i in intervals)
        if not constants.by_loss or constants.first_gradients is None or short == intervals:
            return intervals

        def seconds(chosen: tuple[int, ...]) -> float:
            plan = self._solved(problem, chosen, cuts=cuts)
            return float(round_latency(problem.as_planned(plan), plan.cuts, chosen))

        return intervals if seconds(short) >= SHORTER * seconds(intervals) else short

    def corrected_gain(self, problem: Problem) -> float | None:
        """How many times as fast the plan would be with corrected averages; None where there is no choice."""
        if not self.may_correct or not (self.intervals == self.cuts == PLANNED) or not problem.constants.by_loss:
            return None
        return corrected_gain(problem, allow_empty_tiers=self.allow_empty_tiers)

    def averages(self, plan: Plan, tier: int, rounds: int) -> bool:
        """Whether a tier is averaged after so many rounds since its interval last changed."""
        if self.intervals == DEPTH_AWARE and tier > 0:
            return (rounds - 1) % PERIOD >= PERIOD - UPLOADS
        return rounds % plan.intervals[tier] == 0

    def _intervals(self, problem: Problem, rng: np.random.Generator) -> tuple[int, ...]:
        if self.intervals == RANDOM:
            return random_intervals(problem, rng)
        if self.intervals == NEVER_AVERAGED:
            return tuple(NEVER if averaged else 1 for averaged in problem.system.averaged)
        if self.intervals == LOCAL_STEPS:  # no other tier has anything to average
            return (self.local_steps, *(1,) * (problem.system.num_tiers - 1))
        if self.intervals == DEPTH_AWARE:  # in the rounds that `averages` says
            return (1,) * problem.system.num_tiers
        return tuple(int(i) for i in self.intervals)

    def _cuts(self, problem: Problem, rng: np.random.Generator) -> tuple[int, ...]:
        if self.cuts == RANDOM:
            return random_cuts(
                Terms.from_problem(convergence_aside(problem), allow_empty_tiers=self.allow_empty_tiers).segments, rng
            )
        if self.cuts == FASTEST:
            return fastest_round_cuts(convergence_aside(problem), allow_empty_tiers=self.allow_empty_tiers)
        if self.cuts == ON_DEVICES:
            return (problem.num_layers,) * (problem.system.num_tiers - 1)
        return tuple(int(c) for c in self.cuts)

    def _best(self, problem: Problem, intervals: tuple[int, ...]) -> Plan:
        """The best cuts for given intervals, and what else is planned for both."""
        while True:
            try:
                return self._solved(problem, intervals)
            except InfeasibleError:
                target = 2 * problem.constants.target
                if not np.isfinite(target):
                    raise
                problem = replace(problem, constants=replace(problem.constants, target=target))

    def _solved(
        self, problem: Problem, intervals: tuple[int, ...] | None = None, *, cuts: tuple[int, ...] | None = None
    ) -> Plan:
        def solved(one: Problem) -> Solution:
            return ExactSolver(one, allow_empty_tiers=self.allow_empty_tiers).solve(intervals, cuts=cuts)

        return best_of_all(problem, solved).plan
