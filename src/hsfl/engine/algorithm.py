"""Algorithm 1: rounds of split training, averages when they are due, plans and moves of layers, on a clock. No I/O.

Round t trains every client on a mini-batch. Then the tiers that the schedule names are averaged. When a plan is due,
the constants are measured anew, and the strategy is asked with the machines of the moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import torch

from hsfl.engine.asking import corrected_gain, proposed
from hsfl.engine.backend import Backend
from hsfl.engine.clock import Clock, SimulatedClock
from hsfl.engine.estimate import Estimate, record_constants, recorded_constants, rounds_of_probe
from hsfl.engine.guard import Guard
from hsfl.engine.losses import mean_loss
from hsfl.engine.participation import Participation
from hsfl.engine.rise import Rise
from hsfl.engine.schedule import Average, Schedule
from hsfl.engine.state import AlgorithmRecord
from hsfl.errors import DivergedError, InfeasibleError
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.strategy import Strategy
from hsfl.problem.system import System
from hsfl.problem.topology import Clients, machine_name
from hsfl.records import DriftRecord, PartRecord, PlanRecord, RoundRecord
from hsfl.theory.convergence import predicted_drift


@dataclass(frozen=True)
class Task:
    """What is trained and how plans are made: everything but the state of a run and its data."""

    problem: Problem
    """Machines, profile, batch size and step; constants as far as they are known."""
    strategy: Strategy
    conditions: Callable[[int, float], System]
    """The machines in a round (counted from 0) that starts at a simulated time."""
    with_target: Callable[[Problem], Problem]
    """Fills in the target of a problem whose constants are known."""
    measure_constants: bool
    """Whether the constants are measured for a strategy that needs them; else they are the problem's."""
    probe_batches: int
    replan_every: int
    """The fewest rounds between plans; 0 keeps the first."""
    participation: Participation | None = None
    """Who takes part in rounds; None: everybody."""


@dataclass(frozen=True)
class _Pending:
    """A round whose numbers may still be on the device."""

    round: int
    time_s: float
    planned_s: float | None
    bytes: dict[str, int]
    losses: torch.Tensor
    averages: list[tuple[Average, torch.Tensor]]
    """With the drift just before each."""
    parts: dict[str, PartRecord]
    took_part: Clients
    late: Clients
    failed: Clients


class Algorithm:
    """Runs rounds on a backend and says what happened: one record per round and one per plan."""

    def __init__(self, backend: Backend, task: Task, clock: Clock | None = None) -> None:
        """`clock` is the simulated one unless another is given."""
        self.backend, self.task = backend, task
        self.clock = clock or SimulatedClock(task.problem)
        topology, by_loss = task.problem.system.topology, task.problem.constants.by_loss
        self.schedule = Schedule(topology, task.strategy, task.replan_every, by_loss, task.participation)
        self.estimate, self.guard, self.rise = Estimate(), Guard(), Rise()
        self.problem = task.problem

    @property
    def round(self) -> int:
        return self.schedule.round

    def advance(
        self, rounds: int, until_time_s: float = float("inf"), interrupted: Callable[[], bool] = lambda: False
    ) -> Iterator[RoundRecord | PlanRecord]:
        """Up to so many rounds, fewer when the clock passes `until_time_s` or `interrupted` says so: their records.

        Records come as soon as their numbers are known: on a GPU, which runs ahead, together at the end.
        """
        last = self.round + rounds
        pending: list[_Pending] = []
        while self.round < last and not interrupted() and self.clock.time_s < until_time_s:
            self.gather()
            if self.guard.alarm is not None:
                yield self._shortened()
            elif self.schedule.plan_is_due():
                yield from self._finished(pending)  # the plan may depend on what was seen
                pending = []
                yield self._plan()
            pending.append(self._round())
            drifted = any(average.rounds > 1 for average, _ in pending[-1].averages)
            looks = self._guarded and drifted and self.guard.is_due(self.round)
            if looks or not self.backend.runs_ahead:
                yield from self._finished(pending)
                pending = []
            if looks and self.schedule.plan is not None:
                self.guard.look(self.task.with_target(self._at(self.problem)), self.schedule.plan, self.round)
        yield from self._finished(pending)

    def gather(self) -> None:
        """See the machines of the moment, and draw who may take part, where that is due."""
        self._see()
        if self.schedule.gather(self.clock):
            self.backend.enrol(self.schedule.cohort)

    def _see(self) -> None:
        """The machines of the moment, in the codes of the plan."""
        self.clock.see(self.task.conditions(self.round, self.clock.time_s), self.schedule.plan)

    def _round(self) -> _Pending:
        schedule, backend, clock, plan = self.schedule, self.backend, self.clock, self.schedule.plan
        assert plan is not None
        present = schedule.participants(clock)
        losses = backend.train_round(present.clients)
        took_part = backend.took_part
        here = set(took_part)  # machines can be late, too
        late = present.late or tuple(n for n in present.clients if n not in here)
        counted = took_part if backend.counts_rounds else None
        due = schedule.finish_round(counted)
        clock.split(plan.cuts, clients=counted, least_s=present.waited_s)
        gathered = schedule.gather(clock)
        averages = []
        for average in due:
            averages.append((average, backend.drift(average.tier)))
            backend.average(average.tier)
            if (exchange := schedule.exchange(average.tier)) is not None:
                clock.average(plan.cuts, average.tier, exchange.senders, exchange.receivers)
        if gathered:
            for exchange in schedule.joining():
                clock.average(plan.cuts, exchange.tier, exchange.senders, exchange.receivers)
            backend.enrol(schedule.cohort)
        parts = {name: PartRecord(planned=p, measured=m) for name, (p, m) in clock.parts().items()}
        seen = clock.time_s, clock.planned_s, clock.bytes
        return _Pending(schedule.round, *seen, losses, averages, parts, took_part, late, present.failed)

    def _finished(self, pending: list[_Pending]) -> Iterator[RoundRecord]:
        """Records with their numbers fetched from the device, all at once; DivergedError at a loss that is not one."""
        if not pending:
            return
        losses = torch.cat([one.losses for one in pending]).double().cpu().split([len(one.losses) for one in pending])
        seen = [torch.as_tensor(drift) for one in pending for _, drift in one.averages]
        drifts = iter(torch.stack(seen).double().tolist() if seen else [])
        for one, row in zip(pending, losses, strict=True):
            if not bool(row.isfinite().all()):
                self.backend.check_sent()
                place = int((~row.isfinite()).nonzero()[0])
                raise DivergedError(
                    f"round {one.round}: the loss of client {one.took_part[place] + 1} is {float(row[place])}; lower "
                    "training.learning_rate, or check the data of that client"
                )
            assert self.schedule.plan is not None
            loss = mean_loss(row, self.backend.topology.parts_of(one.took_part)) if len(row) else None
            self.rise.see(loss, averaged := [average.tier for average, _ in one.averages])
            if loss is not None:
                self.guard.see(loss, averaged, self.schedule.plan)
            names = [tier.name for tier in self.clock.problem.system.tiers]
            yield RoundRecord(
                round=one.round,
                time_s=one.time_s,
                planned_s=one.planned_s,
                parts=one.parts,
                bytes=one.bytes,
                loss=loss,
                losses=row.tolist(),
                losses_of=None if len(row) == self.backend.num_clients else list(one.took_part),
                took_part=None if len(row) == self.backend.num_clients else len(row),
                late=self._devices(one.late),
                failed=self._devices(one.failed),
                averaged=[names[average.tier] for average, _ in one.averages],
                drift={names[due.tier]: self._drift(due, one.round, next(drifts)) for due, _ in one.averages},
                learning_rate=self._rate(one.round - 1),
            )

    def _devices(self, clients: Clients) -> list[str]:
        system = self.clock.problem.system
        return [machine_name(system.tiers[0].name, int(system.hosts[0][n])) for n in clients]

    def _at(self, problem: Problem, first: int | None = None, rounds: int = 1) -> Problem:
        """The problem with the step of some rounds, their mean, by default of the next one."""
        optimizer, first = self.backend.optimizer, self.round if first is None else first
        if optimizer.schedule is None:
            return problem
        factor = fmean(optimizer.factor(round_) for round_ in range(first, first + rounds))
        return replace(problem, learning_rate=self.task.problem.learning_rate * factor)

    def _so_far(self) -> Problem:
        """The problem with the mean step of the rounds under the plan in force."""
        return self._at(self.problem, self.schedule.plan_round, max(self.round - self.schedule.plan_round, 1))

    def _rate(self, round_: int) -> float | None:
        """The learning rate of a round, counted from 0, where it changes."""
        return None if self.backend.optimizer.schedule is None else self._at(self.task.problem, round_).learning_rate

    def _drift(self, average: Average, round_: int, measured: float) -> DriftRecord:
        """What was measured just before an average, beside what both models say; the estimate learns from it."""
        assert self.schedule.plan is not None
        cuts, tier = self.schedule.plan.cuts, average.tier
        problem = self._at(self.problem, round_ - average.rounds, average.rounds)
        predicted = {k: float(v[tier]) for k, v in predicted_drift(problem, cuts, average.rounds).items()}
        if self.estimate.probes and not average.moved and "refined" in predicted:
            self.estimate.observe(tier, predicted["refined"], measured)
            self.problem = self._as_estimated(problem)
        return DriftRecord(rounds=average.rounds, measured=measured, **predicted)

    def _plan(self) -> PlanRecord:
        """Ask the strategy; move layers; charge the clock. With no plan for the problem as it stands, keep the last."""
        task, current = self.task, self.schedule.plan
        measures = task.measure_constants and task.strategy.needs_constants
        problem = self._at(replace(task.problem, system=self.clock.problem.system))
        if current is not None:
            problem = _near(problem.as_planned(current), current)
        if measures:
            self.rise.end(self._so_far(), current)
            problem = self._measured(problem, current)
        if task.strategy.needs_constants:
            problem = task.with_target(problem)
        kept = None
        try:
            plan = proposed(task.strategy, problem, current, self.round)
        except InfeasibleError as error:
            if current is None:
                raise
            plan, kept = current, str(error)
        problem = problem.as_planned(plan)
        self.problem = _near(problem, plan)
        self.rise.begin(self.problem, plan)
        if current is not None and plan.cuts != current.cuts:
            self.clock.move(current.cuts, plan.cuts, self.schedule.holders())
        if plan.cuts != self.backend.cuts:
            self.backend.move(plan.cuts)
        self._recode()
        self.schedule.adopt(plan)
        self._see()
        if measures:
            self.clock.split(plan.cuts, rounds_of_probe(problem, task.probe_batches), self.schedule.cohort)
        return PlanRecord(
            round=self.round,
            time_s=self.clock.time_s,
            strategy=task.strategy.name,
            cuts=list(plan.cuts),
            intervals=list(plan.intervals),
            codes=plan.code_names(),
            micro_batches=plan.micro_batches,
            layers=problem.num_layers,
            constants=record_constants(problem.constants) if task.strategy.needs_constants else None,
            kept=kept,
            corrected_gain=corrected_gain(task.strategy, problem) if kept is None else None,
            as_measured=self.clock.as_measured,
            learning_rate=self._rate(self.round),
        )

    def _recode(self) -> None:
        """Let the backend use the codes of the plan and its number of mini-batches, where they are planned."""
        if self.problem.micro_batch_choices is not None:
            self.backend.rebatch(self.problem.micro_batches)
        if self.problem.system.plans_codes:
            self.backend.recode([tier.codes for tier in self.problem.system.tiers])

    @property
    def _guarded(self) -> bool:
        """Whether intervals are planned, and by what is seen of drift and loss."""
        return bool(getattr(self.task.strategy, "guarded", False)) and self.problem.constants.by_loss

    def _shortened(self) -> PlanRecord:
        """Half the intervals, at once: nothing is measured, nothing moves."""
        assert self.schedule.plan is not None
        why, plan = self.guard.alarm, self.guard.shortened(self.schedule.plan)
        self.rise.end(self._so_far(), self.schedule.plan)
        self.problem = _near(self.problem, plan)
        self.rise.begin(self.problem, plan)
        self.schedule.adopt(plan)
        return PlanRecord(
            round=self.round,
            time_s=self.clock.time_s,
            strategy=self.task.strategy.name,
            cuts=list(plan.cuts),
            intervals=list(plan.intervals),
            codes=plan.code_names(),
            micro_batches=plan.micro_batches,
            layers=self.problem.num_layers,
            shortened=why,
        )

    def _measured(self, problem: Problem, current: Plan | None) -> Problem:
        """The problem with constants measured now."""
        step = None if problem.constants.by_loss else problem.step
        self.estimate.add(self.backend.probe(self.task.probe_batches, step, coding=problem.system.plans_codes))
        problem = self._as_estimated(problem)
        if current is None or self.estimate.probes == 1:
            return problem
        # What was seen counts for more than a probe: the drift predicted for the plan in force stays.
        both = self._at(self.problem), problem
        before, now = (predicted_drift(p, current.cuts, current.intervals)["refined"] for p in both)
        for m in range(problem.system.num_tiers):
            self.estimate.observe(m, float(now[m]), float(before[m]), weight=1.0)
        return self._as_estimated(problem)

    def _as_estimated(self, problem: Problem) -> Problem:
        constants = self.estimate.constants(problem, problem.step)
        return replace(problem, constants=replace(constants, rise=self.rise.per_root))

    def state(self) -> AlgorithmRecord:
        """Everything but the backend's tensors; `restore` takes it back."""
        return AlgorithmRecord(
            schedule=self.schedule.state(),
            time_s=self.clock.time_s,
            planned_s=self.clock.planned_s,
            bits=self.clock.bits,
            estimate=self.estimate.state(),
            constants=record_constants(self.problem.constants),
            guard=self.guard.state(),
            rise=self.rise.state(),
        )

    def restore(self, state: AlgorithmRecord) -> None:
        self.schedule.restore(state.schedule, self.task.problem.system.codes_named(state.schedule.codes))
        self.clock.time_s, self.clock.bits = state.time_s, dict(state.bits)
        self.clock.planned_s = state.planned_s
        self.estimate = Estimate.from_state(state.estimate)
        self.guard.restore(state.guard)
        self.rise.restore(state.rise)
        self.problem = replace(self.task.problem, constants=recorded_constants(state.constants))
        if self.schedule.plan is not None:
            self.problem = self.problem.as_planned(self.schedule.plan)
            self._recode()


def _near(problem: Problem, plan: Plan) -> Problem:
    """The problem with a plan in force, near which drift is to be right."""
    if not problem.constants.by_loss:
        return problem
    return replace(
        problem, constants=replace(problem.constants, intervals_in_force=np.array(plan.intervals, dtype=float))
    )
