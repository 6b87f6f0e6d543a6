"""A run on other machines, without training it again.

What is learnt depends on the schedule of cuts and intervals, not on the machines. So a run is also what would have
happened on any other machines for which its strategy, asked again at every plan with the constants that were measured
then, chooses the same and averages in the same rounds: only the clock has to be run again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hsfl.engine.algorithm import averaging, constants_from_dict, proposed
from hsfl.engine.clock import Clock
from hsfl.errors import InfeasibleError
from hsfl.problem.plan import Plan
from hsfl.problem.strategy import Strategy
from hsfl.runs.reading import Run
from hsfl.scenario.dynamics import Conditions
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import make_strategy


def retimed(run: Run, scenario: Scenario, strategy: Strategy | None = None) -> Run | None:
    """The run with the seconds and bytes of the scenario's machines; None if other plans would be made on them.

    The scenario is to differ from the run's in machines only.
    """
    strategy = strategy or make_strategy(scenario)
    conditions, choice = Conditions(scenario), scenario.spec.strategy
    clock = Clock(scenario.training_problem)
    tiers = [tier.name for tier in clock.problem.system.tiers]
    probes = 2 * choice.probe_batches if strategy.needs_constants and choice.constants == "measured" else 0
    made = {record["round"]: record for record in run.plans}
    averages = averaging(strategy)
    since = [0] * len(tiers)
    several = clock.problem.system.averaged
    metrics: list[dict[str, Any]] = []
    plans: list[dict[str, Any]] = []
    plan: Plan | None = None
    for line in run.metrics:
        if line["round"] > 0:
            clock.see(conditions.at(line["round"] - 1, clock.time_s))
            if (record := made.get(line["round"] - 1)) is not None:
                problem = replace(scenario.training_problem, system=clock.problem.system)
                if record["constants"] is not None:
                    problem = replace(problem, constants=constants_from_dict(record["constants"]))
                try:
                    chosen = proposed(strategy, problem, plan, record["round"])
                except InfeasibleError:
                    if plan is None:
                        return None
                    chosen = plan
                if [list(chosen.cuts), list(chosen.intervals)] != [record["cuts"], record["intervals"]]:
                    return None
                if plan is not None and plan.cuts != chosen.cuts:
                    clock.move(plan.cuts, chosen.cuts)
                for m, interval in enumerate(chosen.intervals):
                    if plan is None or interval != plan.intervals[m]:
                        since[m] = record["round"]
                plan = chosen
                clock.split(plan.cuts, probes)
                plans.append(record | {"time_s": clock.time_s})
            assert plan is not None
            clock.split(plan.cuts)
            due = [m for m, of_many in enumerate(several) if of_many and averages(plan, m, line["round"] - since[m])]
            if {tiers[m] for m in due} != set(line.get("drift", ())):
                return None
            for m in due:
                clock.average(plan.cuts, m)
        metrics.append(line | {"time_s": clock.time_s, "bytes": clock.bytes})
    summary = run.summary and run.summary | {"time_s": clock.time_s, "bytes": clock.bytes}
    return replace(run, scenario=dict(scenario.raw), metrics=metrics, plans=plans, summary=summary)
