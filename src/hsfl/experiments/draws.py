"""How much luck is in random cuts and intervals: the same trainings drawn 200 times, on the clock alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsfl.experiments.recipe import Found
from hsfl.experiments.result import Claim, Panel, Result, Series, judged
from hsfl.experiments.settings import Settings
from hsfl.experiments.sizes import HORIZON, SLACK
from hsfl.planner.exact import ExactSolver
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.strategies.named import CHOICES, Named
from hsfl.theory.convergence import target_after
from hsfl.theory.latency import aggregation_latency, round_latency, split_latency

#: The strategies that draw anything.
DRAWN = ("RMA+MS", "MA+RMS", "RMA+RMS", "DAMA+RMS", "RMA+AMS", "RMA+AMS-averages")
READINGS = ("drawn again at every plan", "drawn once")
#: How many times as fast as MA+RMS HSFL is by the paper, IID and not.
_PAPER = {"cifar10": (8.1, 8.0), "mnist": (8.5, 7.0)}
_MIDDLE = (0.05, 0.95)


def planned_by_the_paper(settings: Settings, dataset: str) -> Problem | None:
    """The setting with the constants of its scenario and the paper's bound; smoothness at most 1/step, as in training.

    Plans by this setting have every interval 1, whatever the cuts. None where the scenario has no such constants.
    """
    problem = settings.scenario(dataset, "iid", settings.seeds[0]).bare_problem
    if problem.constants.gradient_second_moment is None:
        return None
    smoothness = min(problem.constants.smoothness, 1 / problem.step)
    problem = replace(problem, constants=replace(problem.constants, drift="paper", smoothness=smoothness))
    return replace(problem, constants=replace(problem.constants, target=target_after(problem, HORIZON, SLACK)))


def seconds_per_round(problem: Problem, strategy: Named, plan: Plan, rounds: int) -> float:
    """Seconds per round while a plan is held, each average counted in the round it falls on."""
    averaged = [sum(strategy.averages(plan, m, r) for r in range(1, rounds + 1)) for m in range(len(plan.intervals))]
    aggregation = aggregation_latency(problem, plan.cuts)
    return float(split_latency(problem, plan.cuts)) + float(aggregation @ np.array(averaged)) / rounds


def of_training(problem: Problem, name: str, seed: int, plans: int, held: int) -> float:
    """Seconds per round of one training: so many plans, each held for so many rounds."""
    intervals, cuts = CHOICES[name]
    assert intervals is not None and cuts is not None
    strategy, plan, seconds = Named(name, intervals, cuts, seed), None, []
    for k in range(plans):
        plan = strategy.propose(problem, plan, k * held)
        seconds.append(seconds_per_round(problem, strategy, plan, held))
    return float(np.mean(seconds))


def draws(settings: Settings, found: Found) -> Result:
    count = 20 if settings.quick else 200
    rows, claims, panels = [], [], []
    for dataset in settings.datasets:
        problem = planned_by_the_paper(settings, dataset)
        if problem is None:
            continue
        spec = settings.scenario(dataset, "iid", settings.seeds[0]).spec
        assert spec.stopping.rounds is not None
        held = spec.strategy.replan_every
        best = ExactSolver(problem).solve().plan
        hsfl = float(round_latency(problem, best.cuts, best.intervals))
        rows.append([dataset, "HSFL", "", round(hsfl, 4), "1.0", "", "", f"{best.cuts} {best.intervals}"])
        series = []
        for name in DRAWN:
            for reading, plans in zip(READINGS, (spec.stopping.rounds // held, 1), strict=True):
                seconds = [of_training(problem, name, seed, plans, held) for seed in range(count)]
                ratios = np.array(seconds) / hsfl
                low, high = np.quantile(ratios, _MIDDLE)
                mean = float(ratios.mean())
                numbers = [round(float(np.mean(seconds)), 4), f"{mean:.1f}", f"{low:.1f}", f"{high:.1f}"]
                rows.append([dataset, name, reading, *numbers, ""])
                if reading == READINGS[0]:
                    part = (np.arange(count) + 0.5) / count
                    series.append(Series(name, np.sort(ratios).tolist(), (100 * part).tolist()))
                for paper in _PAPER.get(dataset, ()) if name == "MA+RMS" else ():
                    claims.append(
                        Claim(
                            f"HSFL's rounds are {paper:g} times as fast as those of {name} ({dataset}, {reading})",
                            f"{paper:g}x",
                            f"{mean:.1f}x ({low:.1f} to {high:.1f})",
                            judged(mean, float(low), float(high), paper, nothing=1.0),
                        )
                    )
        panels.append(Panel(dataset, "times HSFL's seconds per round", "% of the trainings", series, log_x=True))
    return Result(
        "draws",
        f"Random cuts and intervals, drawn {count} times, on the clock alone",
        panels,
        ["data", "strategy", "reading", "s per round", "times HSFL's", "5 %", "95 %", "plan"],
        rows,
        claims,
        [
            "Nothing is trained: the clock alone, planned halves by the paper's bound with the constants of the "
            "scenario, where it has them. By that bound every interval planned is 1 at all cuts, so that HSFL and "
            "MA+RMS learn the same in a round, and the ratio of their rounds is that of their times to any accuracy. "
            "Random intervals learn less in a round, which no clock shows: their ratios count rounds only.",
            "Drawn again at every plan: held as long as in the trained runs. Drawn once: one draw for all of training. "
            'The paper says "during model training". Range: 5 to 95 % of the trainings. Moving layers is not counted.',
        ],
    )
