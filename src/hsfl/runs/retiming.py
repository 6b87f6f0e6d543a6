"""A run on other machines, or for fewer rounds, without training it again.

What is learnt depends on the schedule of cuts and intervals, not on the machines. So a run is also what would have
happened on any other machines for which its strategy, asked again at every plan with the constants that were measured
then, chooses the same and averages in the same rounds: only the clock has to be run again.

Where every tier is averaged after every round, all clients go on from the same weights, and a round is one step along
their mean gradient, wherever the model is cut. So such a run is also, up to rounding, that of any other strategy, cuts
and tiers with which this happens.
"""

from __future__ import annotations

from dataclasses import replace

from hsfl.engine.asking import proposed
from hsfl.engine.clock import SimulatedClock
from hsfl.engine.estimate import recorded_constants, rounds_of_probe
from hsfl.engine.schedule import Schedule
from hsfl.errors import InfeasibleError
from hsfl.problem.codes import PLAIN
from hsfl.problem.plan import Plan
from hsfl.problem.strategy import Strategy
from hsfl.problem.system import System
from hsfl.records import PlanRecord, RoundRecord
from hsfl.runs.participating import participation_of
from hsfl.runs.reading import Run
from hsfl.scenario.dynamics import Conditions
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import make_strategy


def retimed(run: Run, scenario: Scenario, strategy: Strategy | None = None) -> Run | None:
    """The run with the seconds and bytes of the scenario's machines; None if another one would be trained on them.

    The scenario is to differ from the run's in machines and rounds only, or, where every tier is averaged after every
    round, in what chooses plans too.
    """
    strategy = strategy or make_strategy(scenario)
    conditions, choice, problem = Conditions(scenario), scenario.spec.strategy, scenario.training_problem
    measures = strategy.needs_constants and choice.constants == "measured"
    clock, participation = SimulatedClock(problem), participation_of(scenario)
    if participation is not None and participation.by_machines:
        return None
    topology = problem.system.topology
    schedule = Schedule(topology, strategy, choice.replan_every, problem.constants.by_loss, participation)
    names = [tier.name for tier in problem.system.tiers]
    every_tier = [name for name, several in zip(names, topology.averaged, strict=True) if several]
    anywhere = in_step(run, scenario)
    made = {record.round: record for record in run.plans}
    trained_with = run.plans[0]
    metrics: list[RoundRecord] = []
    plans: list[PlanRecord] = []
    for line in _lines(run, scenario):
        if line.round > 0:
            system = conditions.at(schedule.round, clock.time_s)
            clock.see(system, schedule.plan)
            schedule.gather(clock)
            record, due_now = made.get(schedule.round), schedule.plan_is_due()
            shortened = record is not None and record.shortened is not None  # by what was seen, on any machines
            if due_now or shortened:
                if record is None:
                    return None
                plan = (
                    _recorded(record, system)
                    if shortened
                    else _asked_again(strategy, record, clock, schedule.plan, anywhere)
                )
                if plan is None:
                    return None
                if schedule.plan is not None and schedule.plan.cuts != plan.cuts:
                    clock.move(schedule.plan.cuts, plan.cuts, schedule.holders())
                schedule.adopt(plan)
                clock.see(system, plan)
                probes = rounds_of_probe(clock.problem, scenario.probe_batches) if measures and not shortened else 0
                clock.split(plan.cuts, probes, schedule.cohort)
                now = {"time_s": clock.time_s, "cuts": list(plan.cuts), "intervals": list(plan.intervals)}
                told = record.constants if strategy.needs_constants else None
                plans.append(record.model_copy(update=now | {"strategy": strategy.name, "constants": told}))
            assert schedule.plan is not None
            cuts, present = schedule.plan.cuts, schedule.participants(clock)
            due = schedule.finish_round(present.clients)
            averaged = [names[average.tier] for average in due]
            if averaged != (every_tier if anywhere else line.averaged):
                return None
            trained_with = made.get(line.round - 1, trained_with)
            if averaged != line.averaged or list(cuts) != trained_with.cuts:
                line = line.model_copy(update={"averaged": averaged, "drift": {}})  # which is not that of these tiers
            clock.split(cuts, clients=present.clients, least_s=present.waited_s)
            gathered = schedule.gather(clock)
            exchanges = [exchange for average in due if (exchange := schedule.exchange(average.tier)) is not None]
            for exchange in (*exchanges, *(schedule.joining() if gathered else ())):
                clock.average(cuts, exchange.tier, exchange.senders, exchange.receivers)
        metrics.append(line.model_copy(update={"time_s": clock.time_s, "bytes": clock.bytes}))
    if not metrics:
        return None
    now = {"time_s": clock.time_s, "bytes": clock.bytes, "rounds": metrics[-1].round, "strategy": strategy.name}
    if metrics[-1].round < run.metrics[-1].round:
        last, best = metrics[-1], max(line.accuracy for line in metrics if line.accuracy is not None)
        now |= {"ended": "rounds", "why": None, "best_accuracy": best, "metrics": last.metrics}
        now |= {"accuracy": last.accuracy, "test_loss": last.test_loss}
    summary = run.summary and run.summary.model_copy(update=now)
    return replace(run, scenario=dict(scenario.raw), metrics=metrics, plans=plans, summary=summary)


def _lines(run: Run, scenario: Scenario) -> list[RoundRecord]:
    """The lines of a run that are those of the scenario; none where it would be trained for longer, or otherwise."""
    before, wanted = run.scenario["stopping"], scenario.raw["stopping"]
    if before == wanted and "time_limit" not in wanted:  # which ends a run elsewhere on other machines
        return run.metrics
    ends = [k for k, line in enumerate(run.metrics) if line.round == wanted.get("rounds") and line.accuracy is not None]
    fewer = wanted.keys() == {"rounds"} and scenario.spec.training.schedule == "constant"
    return run.metrics[: ends[0] + 1] if ends and fewer else []


def in_step(run: Run, scenario: Scenario) -> bool:
    """Whether every tier was averaged after every round, and whether what is learnt then is the same anywhere.

    What adds up over clients is the same wherever it is added up: not so a coded link, the norm of a machine's
    gradient, or the squares of its elements.
    """
    training = scenario.spec.training
    linear = training.optimizer in ("sgd", "momentum") and training.averaging == "plain" and training.clip is None
    plain = training.labels == "top" and all(tier.codes == PLAIN for tier in scenario.system.tree)
    if not (linear and plain) or participation_of(scenario) is not None:
        return False
    tiers = run.scenario["tiers"]
    several = [tier["name"] for tier in tiers if tier["entities"] > 1]
    uncoded = all(tier.get("code", "fp32") == "fp32" for tier in tiers)
    return uncoded and all(line.averaged == several for line in run.metrics if line.round > 0)


def _asked_again(
    strategy: Strategy, record: PlanRecord, clock: SimulatedClock, current: Plan | None, anywhere: bool
) -> Plan | None:
    """What the strategy chooses on the clock's machines, if that is the recorded plan or, `anywhere`, in step."""
    problem = clock.problem
    if strategy.needs_constants:
        if record.constants is None:
            return None
        constants = recorded_constants(record.constants)
        if anywhere and constants.drift == "paper":  # which asks for nothing that belongs to tiers
            constants = replace(constants, gradient_dissimilarity=None, drift_correction=None)
        problem = replace(problem, constants=constants)
    try:
        chosen = proposed(strategy, problem, current, record.round)
    except InfeasibleError:
        if current is None:
            return None
        chosen = current
    if anywhere and set(chosen.intervals) == {1}:
        return chosen
    return chosen if chosen == _recorded(record, problem.system) else None


def _recorded(record: PlanRecord, system: System) -> Plan:
    codes = system.codes_named(record.codes)
    return Plan(tuple(record.cuts), tuple(record.intervals), codes, record.micro_batches)
