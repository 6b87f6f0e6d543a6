"""What a plan costs, and what a planner may claim about it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hsfl.display import table
from hsfl.problem.plan import NEVER, Plan
from hsfl.problem.problem import Problem
from hsfl.problem.units import format_seconds
from hsfl.theory.convergence import rounds_needed, whole_rounds
from hsfl.theory.latency import RoundParts, aggregation_latency, client_memory, slowest_round
from hsfl.theory.objective import objective_of, total_latency_of


class Limit(NamedTuple):
    """One thing that holds the plan back."""

    kind: str
    """"compute", "uplink", "downlink", "aggregation" or "memory"; where labels stay on the devices, "to tail" and "from
    tail" at the top: its activations down to them, and their gradients up."""
    tier: int
    """Counted from 0."""
    seconds: float
    """Time it takes of an average round; for memory, what its limits add to the objective."""
    share: float
    """The part of an average round, or of the objective, that this is."""


@dataclass(frozen=True)
class Evaluation:
    """The numbers of one plan. Tiers and clients count from 0 here and from 1 in `to_dict`."""

    plan: Plan
    learning_rate: float
    target: float
    """epsilon: the mean squared gradient norm that is reached."""
    rounds: int | None
    """None when the plan never reaches the target."""
    split_latency_s: float
    """T_S."""
    aggregation_latency_s: tuple[float, ...]
    """T_{m,A}, one per tier."""
    objective_s: float
    """Theta; infinite when the plan never reaches the target."""
    total_latency_s: float
    """T(I, c), with whole rounds and averages."""
    slowest_client: int
    """With cohorts: the client whose round is nearest to T_S."""
    parts: RoundParts
    """Where the slowest client's round goes; with cohorts in the mean over them."""
    memory_bits: tuple[float, ...]
    """What the fullest entity of each tier holds; devices that are the last tier, too, for both."""
    tiers_over_memory: tuple[int, ...]
    """Tiers with an entity that does not hold its part (C5); devices once."""
    limits: tuple[Limit, ...]
    """The largest first."""
    chunks: int = 1
    """In how many parts a mini-batch goes through the tiers."""

    def __repr__(self) -> str:
        return f"<Evaluation: {self.in_short}>"

    @property
    def in_short(self) -> str:
        """The plan and its time, in a few words."""
        time = format_seconds(self.objective_s) if self.rounds is not None else "target missed"
        count = "" if self.plan.micro_batches is None else f", micro_batches {self.plan.micro_batches}"
        return f"cuts {list(self.plan.cuts)}, intervals {list(self.plan.intervals)}{count}, {time}"

    @property
    def reaches_target(self) -> bool:
        return self.rounds is not None

    @property
    def fits_memory(self) -> bool:
        return not self.tiers_over_memory

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite time is None."""
        return {
            "cuts": list(self.plan.cuts),
            "intervals": list(self.plan.intervals),
            **({} if self.plan.codes is None else {"codes": self.plan.code_names()}),
            **({} if self.plan.micro_batches is None else {"micro_batches": self.plan.micro_batches}),
            **({} if self.chunks == 1 else {"chunks": self.chunks}),
            "learning_rate": self.learning_rate,
            "target": self.target,
            "rounds": self.rounds,
            "split_latency_s": self.split_latency_s,
            "aggregation_latency_s": list(self.aggregation_latency_s),
            "objective_s": _finite(self.objective_s),
            "total_latency_s": _finite(self.total_latency_s),
            "slowest_client": self.slowest_client + 1,
            "limits": [
                {"kind": x.kind, "tier": x.tier + 1, "seconds": _finite(x.seconds), "share": x.share}
                for x in self.limits
            ],
            "memory_bits": list(self.memory_bits),
            "fits_memory": self.fits_memory,
        }


@dataclass(frozen=True)
class Step:
    """One iteration of a heuristic."""

    plan: Plan
    objective_s: float


@dataclass(frozen=True)
class PlanResult:
    """A planner's answer: the plan, its numbers, and how much is proven about it."""

    scenario: str
    method: str
    status: str
    """"optimal": proven, the gap is rounding; "bounded": a true bound with a gap; "heuristic": nothing is proven."""
    evaluation: Evaluation
    lower_bound_s: float | None
    """No plan has a smaller objective; None when nothing is proven."""
    solve_ms: float
    allow_empty_tiers: bool = False
    """Whether tiers that hold no layer were among the plans to choose from."""
    history: tuple[Step, ...] = ()
    """Every iteration of a heuristic."""
    given: Evaluation | None = None
    """With a planned learning rate: the best plan for the given one, or None if that cannot reach the target."""

    def __repr__(self) -> str:
        return f"<PlanResult {self.scenario}: {self.status} ({self.method}), {self.evaluation.in_short}>"

    @property
    def plan(self) -> Plan:
        """Cuts, intervals and, where they are planned, codes."""
        return self.evaluation.plan

    @property
    def cuts(self) -> tuple[int, ...]:
        return self.plan.cuts

    @property
    def intervals(self) -> tuple[int, ...]:
        return self.plan.intervals

    @property
    def micro_batches(self) -> int | None:
        """The mini-batches of every client in a round, where they are planned."""
        return self.plan.micro_batches

    @property
    def objective_s(self) -> float:
        """Theta, the time to the target that is minimised."""
        return self.evaluation.objective_s

    @property
    def total_latency_s(self) -> float:
        """The time to the target with whole rounds and averages."""
        return self.evaluation.total_latency_s

    @property
    def rounds(self) -> int | None:
        return self.evaluation.rounds

    @property
    def split_latency_s(self) -> float:
        """What a round takes, averages left aside."""
        return self.evaluation.split_latency_s

    @property
    def aggregation_latency_s(self) -> tuple[float, ...]:
        """What an average of each tier takes."""
        return self.evaluation.aggregation_latency_s

    @property
    def memory_bits(self) -> tuple[float, ...]:
        return self.evaluation.memory_bits

    @property
    def slowest_client(self) -> int:
        """The client whose rounds take longest, counted from 0."""
        return self.evaluation.slowest_client

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What the time is spent on, the largest first."""
        return self.evaluation.limits

    @property
    def gap(self) -> float | None:
        """How far the objective can be above the optimum, as a part of the objective; None when nothing is proven."""
        if self.lower_bound_s is None:
            return None
        return max(0.0, 1 - self.lower_bound_s / self.objective_s) if self.objective_s else 0.0

    def _repr_html_(self) -> str:
        e = self.evaluation
        never = "never" if e.rounds is None else f"{e.rounds:,} rounds"
        proven = "" if self.gap is None else f", at most {100 * self.gap:.2g} % above the optimum"
        rows = [
            ("time to target", f"{format_seconds(e.total_latency_s)} ({never})"),
            ("cuts", ", ".join(map(str, self.cuts))),
            ("intervals", ", ".join("never" if i >= NEVER else str(i) for i in self.intervals)),
            *([] if e.plan.micro_batches is None else [("mini-batches a round", str(e.plan.micro_batches))]),
            ("learning rate", f"{e.learning_rate:.4g}"),
            ("target", f"mean squared gradient norm {e.target:.4g}"),
            ("round without averages", format_seconds(e.split_latency_s)),
        ]
        if e.limits:
            limit = e.limits[0]
            rows.append(("limited by", f"{limit.kind} of tier {limit.tier + 1} ({100 * limit.share:.0f} %)"))
        return table(f"{self.scenario}: {self.status} ({self.method}{proven})", rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; tiers, layers and clients count from 1."""
        result: dict[str, Any] = {"scenario": self.scenario, "method": self.method, "status": self.status}
        result |= self.evaluation.to_dict()
        result |= {"lower_bound_s": self.lower_bound_s, "gap": self.gap, "solve_ms": self.solve_ms}
        if self.history:
            result["history"] = [
                {"cuts": list(s.plan.cuts), "intervals": list(s.plan.intervals), "objective_s": s.objective_s}
                for s in self.history
            ]
        if self.given is not None:
            result["given_learning_rate"] = self.given.to_dict()
        return result


def evaluate_plan(problem: Problem, plan: Plan) -> Evaluation:
    """All numbers of a plan, in its codes and with its mini-batches, whether or not it fits memories and target."""
    problem, cuts, intervals = problem.as_planned(plan), np.array(plan.cuts), np.array(plan.intervals)
    client, split_s, parts = slowest_round(problem, cuts)
    aggregation = aggregation_latency(problem, cuts)
    needed = rounds_needed(problem, cuts, intervals)
    rounds = float(whole_rounds(needed))
    memory, tree = client_memory(problem, cuts), len(problem.system.tree)
    return Evaluation(
        plan=plan,
        learning_rate=problem.learning_rate,
        target=problem.constants.target,
        rounds=int(rounds) if math.isfinite(rounds) else None,
        split_latency_s=float(split_s),
        aggregation_latency_s=tuple(map(float, aggregation)),
        objective_s=float(objective_of(needed, split_s, aggregation, intervals)),
        total_latency_s=float(total_latency_of(needed, split_s, aggregation, intervals)),
        slowest_client=client,
        parts=parts,
        memory_bits=tuple((memory * problem.system.most_clients).tolist()),
        tiers_over_memory=tuple(np.flatnonzero((memory >= problem.system.memory_per_client_bits)[:tree]).tolist()),
        limits=_limits(parts, (aggregation / intervals).tolist(), tree),
        chunks=problem.chunks,
    )


def _limits(parts: RoundParts, aggregation_s: list[float], tree: int) -> tuple[Limit, ...]:
    """The parts of an average round, T_S + sum_m T_{m,A}/I_m, by size; the link above the tree is to the tail."""
    seconds = [("compute", m, s) for m, s in enumerate(parts.compute_s.tolist())]
    for kind, tail, link_s in (("uplink", "to tail", parts.uplink_s), ("downlink", "from tail", parts.downlink_s)):
        seconds += [(kind if m < tree - 1 else tail, m, s) for m, s in enumerate(link_s.tolist())]
    seconds += [("aggregation", m, s) for m, s in enumerate(aggregation_s)]
    total = sum(s for *_, s in seconds)
    found = sorted((part for part in seconds if part[2] > 0), key=lambda part: -part[2])
    return tuple(Limit(kind, tier, s, s / total) for kind, tier, s in found)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
