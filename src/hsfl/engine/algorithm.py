"""Algorithm 1: rounds of split training, averages when they are due, plans and moves of layers, on the clock. No I/O.

Round t trains every client on a mini-batch. Then every tier m with several entities is averaged if t is a multiple of
I_m, counted from the last change of I_m. Once every such tier has been averaged since the last plan (and some rounds
have passed), a strategy that re-plans is asked again, with the constants measured anew and the machines of the moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from hsfl.engine.backend import Backend
from hsfl.engine.clock import Clock
from hsfl.engine.estimate import Estimate, probe
from hsfl.errors import HsflError, InfeasibleError, ScenarioError
from hsfl.problem.plan import Plan, make_plan
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.strategy import Strategy
from hsfl.problem.system import System
from hsfl.theory.convergence import predicted_drift, rounds_needed, whole_rounds
from hsfl.theory.latency import fits_memory

#: Rounds whose mini-batches are drawn at once.
_DRAWN_AT_ONCE = 64


class Sampler(Protocol):
    """Which samples every client takes in which round."""

    def draw(self, first_round: int, count: int) -> np.ndarray: ...
    def probe(self, round_: int, batches: int) -> np.ndarray: ...


class Feed(Protocol):
    """Turns what was drawn into inputs and targets on the device."""

    def __call__(self, draw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...
    def samples(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


class DivergedError(HsflError):
    """A loss is not finite."""


@dataclass(frozen=True)
class Task:
    """What is trained, on what, and how plans are made: everything but the state of a run."""

    problem: Problem
    """Machines, profile, batch size and step; constants as far as they are known."""
    strategy: Strategy
    sampler: Sampler
    feed: Feed
    conditions: Callable[[int, float], System]
    """The machines in a round (counted from 0) that starts at a simulated time."""
    with_target: Callable[[Problem], Problem]
    """Fills in the target of a problem whose constants are known."""
    measure: bool = True
    """Whether the constants are measured for a strategy that wants them."""
    probe_batches: int = 4
    replan_every: int = 200
    """The fewest rounds between plans; 0 keeps the first."""


@dataclass
class Progress:
    """Where a run stands, in plain values that JSON holds exactly."""

    round: int = 0
    plan: Plan | None = None
    plan_round: int = 0
    """When the plan in force was made."""
    interval_since: list[int] = field(default_factory=list)
    """When each tier's interval last changed."""
    averaged: list[int] = field(default_factory=list)
    """When each tier was last averaged; all are equal at the start."""
    moved: int = 0
    """When layers last changed tiers."""


class Algorithm:
    """Runs rounds and says what happened, one record per round and one per plan.

    A record of a round has round, time_s, loss (the mean over clients), losses (per client), bytes, and drift where a
    tier was averaged; a record of a plan has what was chosen and the constants it was chosen with.
    """

    def __init__(self, backend: Backend, task: Task) -> None:
        self.backend, self.task = backend, task
        self.clock = Clock(task.problem)
        self.estimate = Estimate()
        self.problem = task.problem
        tiers = task.problem.system.num_tiers
        self.progress = Progress(interval_since=[0] * tiers, averaged=[0] * tiers)
        self._draws: tuple[int, torch.Tensor] | None = None
        self._averages = averaging(task.strategy)

    @property
    def round(self) -> int:
        return self.progress.round

    def advance(
        self, rounds: int, until_time_s: float = float("inf"), interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[dict[str, Any]]:
        """Up to so many rounds, fewer when the clock passes `until_time_s` or `interrupted` says so: their records.

        Records come as soon as their numbers are known: on a GPU, which runs ahead, together at the end.
        """
        last = self.round + rounds
        waiting: list[dict[str, Any]] = []
        while self.round < last and not interrupted() and self.clock.time_s < until_time_s:
            self.clock.see(self.task.conditions(self.round, self.clock.time_s))
            if self._plan_is_due():
                yield from self._finished(waiting)  # the plan may depend on what was seen
                waiting = []
                yield self._plan()
            waiting.append(self._round())
            if self.backend.device.type == "cpu":
                yield from self._finished(waiting)
                waiting = []
        yield from self._finished(waiting)

    def _round(self) -> dict[str, Any]:
        progress, plan, backend = self.progress, self.progress.plan, self.backend
        assert plan is not None
        losses = backend.step_from(self.task.feed, self._drawn(progress.round))
        progress.round += 1
        self.clock.split(plan.cuts)
        drift = {}
        for m, tier in enumerate(self.clock.problem.system.tiers):
            if tier.entities > 1 and self._averages(plan, m, progress.round - progress.interval_since[m]):
                drift[m] = (progress.round - progress.averaged[m], progress.averaged[m], backend.drift(m))
                backend.average(m)
                self.clock.average(plan.cuts, m)
                progress.averaged[m] = progress.round
        return {
            "round": progress.round,
            "time_s": self.clock.time_s,
            "losses": losses,
            "bytes": self.clock.bytes,
            "drift": drift,
        }

    def _finished(self, records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Records with their numbers fetched from the device, all at once; DivergedError at a loss that is not one."""
        if not records:
            return
        losses = torch.stack([record["losses"] for record in records]).double().cpu()
        seen = [torch.as_tensor(d[2]) for record in records for d in record["drift"].values()]
        drifts = iter(torch.stack(seen).double().tolist() if seen else [])
        for record, row in zip(records, losses, strict=True):
            if not bool(row.isfinite().all()):
                client = int((~row.isfinite()).nonzero()[0])
                raise DivergedError(
                    f"round {record['round']}: the loss of client {client + 1} is {float(row[client])}; lower "
                    "training.learning_rate, or check the data of that client"
                )
            found = {}
            for m, (rounds, since, _) in record["drift"].items():
                found[self.clock.problem.system.tiers[m].name] = self._drift(m, rounds, since, next(drifts))
            yield record | {"kind": "round", "loss": float(row.mean()), "losses": row.tolist(), "drift": found}

    def _drift(self, tier: int, rounds: int, since: int, measured: float) -> dict[str, float]:
        """What was measured just before an average, beside what both models say; the estimate learns from it."""
        assert self.progress.plan is not None
        cuts = self.progress.plan.cuts
        predicted = {k: float(v[tier]) for k, v in predicted_drift(self.problem, cuts, rounds).items()}
        if self.estimate.probes and since >= self.progress.moved and "refined" in predicted:
            self.estimate.observe(tier, predicted["refined"], measured)
            self.problem = self._as_estimated(self.problem)
        return {"rounds": rounds, "measured": measured, **predicted}

    def _plan_is_due(self) -> bool:
        progress, task = self.progress, self.task
        if progress.plan is None:
            return True
        if not (task.strategy.replans and task.replan_every) or self.round - progress.plan_round < task.replan_every:
            return False
        several = self.clock.problem.system.averaged
        return all(at > progress.plan_round for at, wanted in zip(progress.averaged, several, strict=True) if wanted)

    def _plan(self) -> dict[str, Any]:
        """Ask the strategy; move layers; charge the clock. With no plan for the problem as it stands, keep the last."""
        progress, task, current = self.progress, self.task, self.progress.plan
        measured = task.measure and task.strategy.needs_constants
        problem = replace(task.problem, system=self.clock.problem.system)
        if measured:
            indices = torch.from_numpy(task.sampler.probe(self.round, task.probe_batches)).to(self.backend.device)
            self.estimate.add(probe(self.backend, task.feed.samples, indices, problem.step))
            problem = self._as_estimated(problem)
            if current is not None and self.estimate.probes > 1:
                # What was seen counts for more than a probe: the drift predicted for the plan in force stays.
                before, now = (
                    predicted_drift(p, current.cuts, current.intervals)["refined"] for p in (self.problem, problem)
                )
                for m in range(problem.system.num_tiers):
                    self.estimate.observe(m, float(now[m]), float(before[m]), weight=1.0)
                problem = self._as_estimated(problem)
        if task.strategy.needs_constants:
            problem = task.with_target(problem)
        kept = None
        try:
            plan = proposed(task.strategy, problem, current, self.round)
        except InfeasibleError as error:
            if current is None:
                raise
            plan, kept = current, str(error)
        self.problem = problem
        if current is not None and plan.cuts != current.cuts:
            self.clock.move(current.cuts, plan.cuts)
        if plan.cuts != self.backend.cuts:
            self.backend.move(plan.cuts)
            progress.moved = self.round
        for m, interval in enumerate(plan.intervals):
            if current is None or interval != current.intervals[m]:
                progress.interval_since[m] = self.round
        progress.plan, progress.plan_round = plan, self.round
        if measured:
            self.clock.split(plan.cuts, 2 * task.probe_batches)
        predicted = None
        if task.strategy.needs_constants:
            found = float(whole_rounds(rounds_needed(problem, plan.cuts, plan.intervals)))
            predicted = int(found) if np.isfinite(found) else None
        return {
            "kind": "plan",
            "round": self.round,
            "time_s": self.clock.time_s,
            "strategy": task.strategy.name,
            "cuts": list(plan.cuts),
            "intervals": list(plan.intervals),
            "rounds_predicted": predicted,
            "constants": constants_to_dict(problem.constants) if task.strategy.needs_constants else None,
            "layers": problem.num_layers,
            "kept": kept,
        }

    def _as_estimated(self, problem: Problem) -> Problem:
        return replace(problem, constants=self.estimate.constants(problem.constants, problem.step))

    def _drawn(self, round_: int) -> torch.Tensor:
        """(N, b, K): the mini-batches of a round, on the device."""
        block = round_ // _DRAWN_AT_ONCE
        if self._draws is None or self._draws[0] != block:
            draws = torch.from_numpy(self.task.sampler.draw(block * _DRAWN_AT_ONCE, _DRAWN_AT_ONCE))
            self._draws = (block, draws.to(self.backend.device))
        return self._draws[1][round_ - block * _DRAWN_AT_ONCE]

    def state(self) -> dict[str, Any]:
        """Everything but the backend's tensors, as plain values; `restore` takes it back."""
        progress, plan = self.progress, self.progress.plan
        return {
            "progress": vars(progress) | {"plan": None if plan is None else [plan.cuts, plan.intervals]},
            "time_s": self.clock.time_s,
            "bits": self.clock.bits,
            "estimate": self.estimate.to_dict(),
            "constants": constants_to_dict(self.problem.constants),
        }

    def restore(self, state: dict[str, Any]) -> None:
        plan = state["progress"]["plan"]
        self.progress = Progress(**state["progress"] | {"plan": plan and Plan(tuple(plan[0]), tuple(plan[1]))})
        self.clock.time_s, self.clock.bits = state["time_s"], dict(state["bits"])
        self.estimate = Estimate(**state["estimate"])
        self.problem = replace(self.task.problem, constants=constants_from_dict(state["constants"]))
        self._draws = None


def proposed(strategy: Strategy, problem: Problem, current: Plan | None, round_: int) -> Plan:
    """What a strategy proposes, in order, if it is a plan that the machines can hold."""
    name, system = strategy.name, problem.system
    try:
        found = strategy.propose(problem, current, round_)
    except HsflError:
        raise
    except Exception as error:
        raise _raised(strategy, "propose", error) from error
    try:
        plan = make_plan(
            found.cuts,
            found.intervals,
            entities=system.entities,
            num_layers=problem.num_layers,
            allow_empty_tiers=True,
        )
    except (AttributeError, TypeError):
        raise ScenarioError(f"strategy {name} proposed {found!r}; it must propose an hsfl.Plan") from None
    except ScenarioError as error:
        raise ScenarioError(f"strategy {name}: {error}") from None
    if len(over := np.flatnonzero(~fits_memory(problem, plan.cuts))):
        tier = system.tiers[int(over[0])].name
        raise InfeasibleError(
            f"strategy {name}: cuts {list(plan.cuts)} need more memory than tier {tier} has; choose other cuts"
        )
    return plan


def averaging(strategy: Strategy) -> Callable[[Plan, int, int], bool]:
    """Whether a tier is averaged so many rounds after its interval changed: every I_m, or as the strategy says."""
    own: Callable[[Plan, int, int], bool] | None = getattr(strategy, "averages", None)

    def averages(plan: Plan, tier: int, rounds: int) -> bool:
        if own is None:
            return rounds % plan.intervals[tier] == 0
        try:
            return bool(own(plan, tier, rounds))
        except Exception as error:
            raise _raised(strategy, "averages", error) from error

    return averages


def _raised(strategy: Strategy, function: str, error: Exception) -> ScenarioError:
    reason = " ".join(str(error).split()).rstrip(".") or "no message"
    return ScenarioError(f"strategy {strategy.name}: {function} raised {type(error).__name__} ({reason}); correct it")


def constants_to_dict(constants: Constants) -> dict[str, Any]:
    """Plain values; NaN, for what is not known, is None."""
    found: dict[str, Any] = {}
    for name, value in vars(constants).items():
        if isinstance(value, np.ndarray):
            found[name] = value.tolist()
        else:
            found[name] = None if isinstance(value, float) and np.isnan(value) else value
    return found


def constants_from_dict(values: dict[str, Any]) -> Constants:
    def array(name: str) -> Any:
        return None if values[name] is None else np.array(values[name], dtype=float)

    def number(name: str) -> float:
        return np.nan if values[name] is None else values[name]

    return Constants(
        number("smoothness"),
        number("initial_gap"),
        number("target"),
        array("gradient_variance"),
        array("gradient_second_moment"),
        array("gradient_dissimilarity"),
        values["drift"],
        array("drift_correction"),
    )
