"""A run on other machines, without training it again.

What is learnt depends on the schedule of cuts and intervals, not on the machines. So a run is also what would have
happened on any other machines for which its strategy, asked again at every plan with the constants that were measured
then, chooses the same and averages in the same rounds: only the clock has to be run again.
"""

from __future__ import annotations

from dataclasses import replace

from hsfl.engine.asking import proposed
from hsfl.engine.clock import SimulatedClock
from hsfl.engine.estimate import recorded_constants, rounds_of_probe
from hsfl.engine.schedule import Schedule
from hsfl.errors import InfeasibleError
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
    """The run with the seconds and bytes of the scenario's machines; None if other plans would be made on them.

    The scenario is to differ from the run's in machines only.
    """
    strategy = strategy or make_strategy(scenario)
    conditions, choice, problem = Conditions(scenario), scenario.spec.strategy, scenario.training_problem
    measures = strategy.needs_constants and choice.constants == "measured"
    clock, participation = SimulatedClock(problem), participation_of(scenario)
    if participation is not None and participation.by_machines:
        return None
    schedule = Schedule(problem.system.topology, strategy, choice.replan_every, participation=participation)
    names = [tier.name for tier in problem.system.tiers]
    made = {record.round: record for record in run.plans}
    metrics: list[RoundRecord] = []
    plans: list[PlanRecord] = []
    for line in run.metrics:
        if line.round > 0:
            system = conditions.at(schedule.round, clock.time_s)
            clock.see(system, schedule.plan)
            schedule.gather(clock)
            if (record := made.get(schedule.round)) is not None:
                shortened = record.shortened is not None  # by what was seen of drift and loss, on any machines
                plan = (
                    _recorded(record, system)
                    if shortened
                    else _asked_again(strategy, record, scenario, clock, schedule.plan)
                )
                if plan is None:
                    return None
                if schedule.plan is not None and schedule.plan.cuts != plan.cuts:
                    clock.move(schedule.plan.cuts, plan.cuts, schedule.holders())
                schedule.adopt(plan)
                clock.see(system, plan)
                probes = rounds_of_probe(clock.problem, choice.probe_batches) if measures and not shortened else 0
                clock.split(plan.cuts, probes, schedule.cohort)
                plans.append(record.model_copy(update={"time_s": clock.time_s}))
            assert schedule.plan is not None
            cuts, present = schedule.plan.cuts, schedule.participants(clock)
            due = schedule.finish_round(present.clients)
            if [names[average.tier] for average in due] != line.averaged:
                return None
            clock.split(cuts, clients=present.clients, least_s=present.waited_s)
            gathered = schedule.gather(clock)
            exchanges = [exchange for average in due if (exchange := schedule.exchange(average.tier)) is not None]
            for exchange in (*exchanges, *(schedule.joining() if gathered else ())):
                clock.average(cuts, exchange.tier, exchange.senders, exchange.receivers)
        metrics.append(line.model_copy(update={"time_s": clock.time_s, "bytes": clock.bytes}))
    summary = run.summary and run.summary.model_copy(update={"time_s": clock.time_s, "bytes": clock.bytes})
    return replace(run, scenario=dict(scenario.raw), metrics=metrics, plans=plans, summary=summary)


def _asked_again(
    strategy: Strategy, record: PlanRecord, scenario: Scenario, clock: SimulatedClock, current: Plan | None
) -> Plan | None:
    """The recorded plan, if the strategy chooses it on the clock's machines too."""
    problem = clock.problem
    if record.constants is not None:
        problem = replace(problem, constants=recorded_constants(record.constants))
    try:
        chosen = proposed(strategy, problem, current, record.round)
    except InfeasibleError:
        if current is None:
            return None
        chosen = current
    return chosen if chosen == _recorded(record, problem.system) else None


def _recorded(record: PlanRecord, system: System) -> Plan:
    codes = system.codes_named(record.codes)
    return Plan(tuple(record.cuts), tuple(record.intervals), codes, record.micro_batches)
