"""All recipes by name."""

from __future__ import annotations

from hsfl.experiments import (
    ablations,
    as_hsfl,
    benchmarks,
    converged,
    draws,
    forecasts,
    gains,
    in_chunks,
    motivation,
    paper_step,
    planning,
    random_systems,
    resources,
)
from hsfl.experiments.recipe import Found, Recipe
from hsfl.experiments.result import Result
from hsfl.experiments.settings import Settings

#: Random systems of the recipes that plan only: quick, and at full size.
SYSTEMS = {"bcd": (40, 2000), "robustness": (20, 500)}


def _bcd(settings: Settings, found: Found) -> Result:
    return random_systems.bcd_gap(SYSTEMS["bcd"][not settings.quick])


def _robustness(settings: Settings, found: Found) -> Result:
    return random_systems.robustness(SYSTEMS["robustness"][not settings.quick])


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("fig2a", "three tiers against two", motivation.tiers, motivation.tiers_runs),
        Recipe("fig2b", "accuracy against traffic", motivation.traffic, motivation.traffic_runs),
        Recipe("fig2c", "latency against cuts", motivation.latency),
        Recipe("fig2d", "accuracy for several cuts", motivation.depth, motivation.depth_runs),
        Recipe("fig4", "accuracy over time, six strategies", benchmarks.accuracy_over_time, benchmarks.runs),
        Recipe("fig5", "converged accuracy and time", converged.converged_time, benchmarks.runs, runs_of="fig4"),
        Recipe("as-hsfl", "fig4 and fig5 as hsfl plans", as_hsfl.as_hsfl, as_hsfl.runs),
        Recipe("fig6", "scarce resources, six strategies", resources.strategies, resources.strategies_runs),
        Recipe("fig7", "scarce resources, three tiers and two", resources.trees, resources.trees_runs),
        Recipe("fig8", "planned intervals against PSL", ablations.intervals, ablations.intervals_runs),
        Recipe("fig9", "several cuts at long intervals", ablations.cuts, ablations.cuts_runs),
        Recipe("setting", "how the step was chosen", planning.setting, planning.setting_runs),
        Recipe("step", "the paper's step and its intervals", paper_step.step, paper_step.step_runs),
        Recipe("drift", "predicted against measured drift", planning.drift, planning.drift_runs, True),
        Recipe("beyond", "corrected averages and coded links", gains.beyond, gains.beyond_runs),
        Recipe(
            "chunks",
            "the runs of beyond with mini-batches in chunks",
            in_chunks.beyond_in_chunks,
            gains.beyond_runs,
            runs_of="beyond",
        ),
        Recipe(
            "hindsight",
            "planned against a grid of fixed plans",
            gains.hindsight,
            gains.hindsight_runs,
        ),
        Recipe("forecast", "forecasts of the loss against what happened", forecasts.forecast, forecasts.runs, True),
        Recipe("draws", "random choices, drawn many times", draws.draws),
        Recipe("bcd", "how far BCD ends from the optimum", _bcd),
        Recipe("robustness", "plans with wrong constants", _robustness),
    )
}
