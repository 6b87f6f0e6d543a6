"""How the setting was chosen, and how well drift is predicted."""

from __future__ import annotations

from typing import Any

import numpy as np

from hsfl.experiments import gains
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.experiments.settings import Settings, fixed
from hsfl.experiments.statistics import curves, finals
from hsfl.runs.reading import Run

#: The seeds that choose the setting, and no result uses; the part of the training samples that it is chosen on.
SEEDS, VALIDATION = (1000, 1001), 0.1
#: How many points below the best step the chosen one may end.
POINTS = 1.0
_GROUP_NORM: dict[str, Any] = {
    "model.factory": "hsfl.experiments.networks:vgg16_group_norm",
    "model.input_shape": [3, 32, 32],
    "convergence.gradient_variance": None,
    "convergence.gradient_second_moment": None,
}


def _step(optimizer: str, rate: float) -> dict[str, Any]:
    return {"training.optimizer": optimizer, "training.learning_rate": rate}


def _tried(settings: Settings) -> dict[str, dict[str, dict[str, Any]]]:
    """Full synchronisation with several optimisers, steps and normalisations: overrides by data set and label.

    The first on every data set is the one chosen.
    """
    tried = {
        dataset: {f"momentum {rate:g}": _step("momentum", rate) for rate in data.steps}
        for dataset, data in settings.size.data.items()
    }
    if settings.quick:
        tried[settings.dataset] |= {"SGD 0.01": _step("sgd", 0.01)}
    else:
        tried[settings.dataset] |= {"SGD 0.0005 (the paper)": _step("sgd", 5e-4), "SGD 0.1": _step("sgd", 0.1)}
    if settings.size.network == "vgg16":
        tried[settings.dataset] |= {"group norm, momentum 0.01": _GROUP_NORM}
    return tried


def setting_runs(settings: Settings) -> Wanted:
    sync = fixed(settings.size.cuts, (1, 1)) | {"data.validation": VALIDATION}
    return {
        (dataset, label, seed): settings.scenario(dataset, "shards", seed, sync | overrides)
        for dataset, tried in _tried(settings).items()
        for label, overrides in tried.items()
        for seed in (SEEDS[:1] if settings.quick else SEEDS)
    }


def setting(settings: Settings, found: Found) -> Result:
    panels, rows, claims = [], [], []
    for dataset, tried in _tried(settings).items():
        of: dict[str, list[Run]] = {label: [] for label in tried}
        for (data, label, _), run in found.items():
            if data == dataset:
                of[label].append(run)
        panels.append(curves(dataset, of, lambda line: float(line.round), "rounds"))
        final = {label: finals(runs).mean for label, runs in of.items()}
        for label, runs in of.items():
            ended = sum(run.summary is not None and run.summary.ended != "rounds" for run in runs)
            rows.append([dataset, label, settings.rounds(dataset), finals(runs).text(2), ended])
        steps = [label for label in tried if label.startswith("momentum")]
        chosen, best = steps[0], max(steps, key=final.__getitem__)
        lost = final[best] - final[chosen]
        claims.append(
            Claim(
                f"the step of the experiments ends within a point of the best ({dataset})",
                "not in the paper",
                f"{chosen}: {final[chosen]:.2f} %, {best}: {final[best]:.2f} %",
                HOLDS if lost <= POINTS else IN_PART if lost <= 2 * POINTS else FAILS,
            )
        )
    return Result(
        "setting",
        f"How the setting was chosen: full synchronisation ({' and '.join(_tried(settings))}, non-IID)",
        panels,
        ["data", "setting", "rounds", "final accuracy (%)", "diverged"],
        rows,
        claims,
        [
            f"Accuracies are on {VALIDATION:.0%} of the training samples, which are not trained on, with seeds that no "
            f"other recipe uses ({', '.join(map(str, SEEDS))}). The first row of each data set is what all experiments "
            "use.",
            "With every interval 1, IID and non-IID data train alike, at any cuts: every round steps along the mean "
            f"gradient. Cuts are {settings.size.cuts}.",
        ],
    )


MODELS = ("paper", "refined")


def drift_runs(settings: Settings) -> Wanted:
    """The planned runs of `beyond` with links as in the paper, and plain or corrected averages."""
    planned = (gains.PLANNED, gains.CORRECTED)
    return {key: scenario for key, scenario in gains.beyond_runs(settings).items() if key[1] in planned}


def drift(settings: Settings, found: Found) -> Result:
    """Every average of planned runs: the drift just before it, and what both models said."""
    panels, rows, claims = [], [], []
    for partition, word in gains.partitions(settings).items():
        seen = [
            entry
            for key, run in found.items()
            if key[0] == partition
            for line in run.metrics
            for entry in line.drift.values()
            if entry.measured > 0 and entry.rounds > 1 and entry.refined and entry.paper
        ]
        step = max(1, len(seen) // 400)
        ratios = {model: np.array([getattr(entry, model) / entry.measured for entry in seen]) for model in MODELS}
        panels.append(
            Panel(
                word,
                "measured drift",
                "predicted drift",
                [
                    Series(model, [e.measured for e in seen[::step]], [getattr(e, model) for e in seen[::step]])
                    for model in MODELS
                ],
                kind="points",
                log_x=True,
                log_y=True,
                diagonal=True,
            )
        )
        for model, ratio in ratios.items():
            low, middle, high = np.quantile(ratio, (0.05, 0.5, 0.95))
            within = float(np.mean((ratio > 0.25) & (ratio < 4)))
            rows.append([word, model, len(ratio), *(float(f"{v:.3g}") for v in (low, middle, high)), round(within, 3)])
            if model == "refined":
                claims.append(
                    Claim(
                        f"the refined model, corrected by drift seen before, predicts it within a factor of 4 ({word})",
                        "not in the paper",
                        f"{within:.1%} of {len(ratio)} averages",
                        HOLDS if within > 0.95 else IN_PART if within > 0.5 else FAILS,
                    )
                )
    return Result(
        "drift",
        f"Predicted against measured drift ({settings.dataset})",
        panels,
        ["partition", "model", "averages", "ratio, 5 %", "median", "95 %", "within a factor of 4"],
        rows,
        claims,
        [
            "Drift: the mean squared distance of a tier's sub-models from their mean, just before an average of a "
            "planned run, intervals of 2 and more; some 400 of each kind are drawn. Ratios are predicted / measured.",
            "The refined model is corrected by what was seen before, tier by tier. The paper's is a bound, with the "
            "constants of the last plan: where gradients have grown since, drift may exceed it.",
        ],
    )
