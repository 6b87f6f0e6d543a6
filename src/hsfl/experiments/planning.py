"""How the setting was found, what the two drift models plan and reach, and how well they predict drift."""

from __future__ import annotations

from typing import Any

import numpy as np

from hsfl.experiments.benchmarks import FULL_SYNC, PARTITIONS, full_sync_cuts
from hsfl.experiments.measures import final_accuracy, minutes, over_seeds, target_below, time_to
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.experiments.settings import Settings, fixed

_GROUP_NORM: dict[str, Any] = {
    "model.factory": "hsfl.experiments.models:vgg16_group_norm",
    "model.input_shape": [3, 32, 32],
    "convergence.gradient_variance": None,
    "convergence.gradient_second_moment": None,
}


def _step(optimizer: str, rate: float) -> dict[str, Any]:
    return {"training.optimizer": optimizer, "training.learning_rate": rate}


def _tried(settings: Settings) -> dict[str, tuple[str, dict[str, Any]]]:
    """Full synchronisation with several optimisers, steps and normalisations, and plans with several tolerances.

    By label: the data set, and what is particular.
    """
    if settings.quick:
        sync = fixed(settings.cuts, (1, 1))
        tried = {
            "SGD 0.01": sync | _step("sgd", 0.01),
            "momentum 0.01": sync,
            "momentum 0.01, planned, slack 10": {"convergence.slack": 10.0},
        }
        return {label: (settings.dataset, overrides) for label, overrides in tried.items()}
    sync = fixed((4, 7), (1, 1))
    precision = "tf32" if settings.precision == "bf16" else settings.precision
    rough: dict[str, Any] = {"training.precision": precision, "training.evaluate_every": 100}
    tried = {
        "SGD 0.0005 (the paper), 1,000 rounds": sync | rough | _step("sgd", 5e-4) | {"training.rounds": 1000},
        "SGD 0.1": sync | rough | _step("sgd", 0.1),
        "momentum 0.005": sync | rough | _step("momentum", 0.005),
        "momentum 0.01": sync | {"training.evaluate_every": 100},
        "momentum 0.01, 3,000 rounds": sync | rough | {"training.rounds": 3000},
        "momentum 0.02": sync | _step("momentum", 0.02),
        "momentum 0.01, I = 50": fixed(settings.cuts, (50, 50)),
        "momentum 0.02, I = 50": fixed(settings.cuts, (50, 50)) | _step("momentum", 0.02),
        "group norm, momentum 0.003": sync | _GROUP_NORM | _step("momentum", 0.003),
        "group norm, momentum 0.01": sync | rough | _GROUP_NORM,
        "group norm, momentum 0.03": sync | rough | _GROUP_NORM | _step("momentum", 0.03),
        "momentum 0.02, planned, slack 3": _step("momentum", 0.02),
        "momentum 0.01, averaged too, planned, slack 3": {"training.average_optimizer": True},
        **{f"momentum 0.01, planned, slack {slack:g}": {"convergence.slack": slack} for slack in (1.0, 3.0, 10.0)},
    }
    mnist = {f"mnist, momentum {rate:g}": sync | _step("momentum", rate) for rate in (0.005, 0.01, 0.02)}
    mnist |= {f"mnist, momentum {rate:g}, planned, slack 3": _step("momentum", rate) for rate in (0.005, 0.01)}
    return {label: ("cifar10", overrides) for label, overrides in tried.items()} | {
        label: ("mnist", overrides) for label, overrides in mnist.items()
    }


def setting_runs(settings: Settings) -> Wanted:
    return {
        (label,): settings.scenario(dataset, "shards", settings.seeds[0], overrides)
        for label, (dataset, overrides) in _tried(settings).items()
    }


def setting(settings: Settings, found: Found) -> Result:
    rows = []
    for label in _tried(settings):
        run = found[label,]
        last = run.plans[-1]
        rows.append(
            [
                label,
                run.metrics[-1]["round"],
                round(100 * final_accuracy(run), 2),
                round(100 * max(line["accuracy"] for line in run.evaluations()), 2),
                round(run.metrics[-1]["time_s"]),
                f"{last['cuts']} {last['intervals']}",
                str(run.summary["ended"]) if run.summary else "",
            ]
        )
    return Result(
        "setting",
        f"What trains: full synchronisation and plans ({' and '.join(settings.datasets)}, non-IID)",
        [
            Panel(
                "fixed plans",
                "rounds",
                "test accuracy (%)",
                [_by_round(label, found) for label in _tried(settings) if "planned" not in label],
            ),
            Panel(
                "planned",
                "simulated minutes",
                "test accuracy (%)",
                [over_seeds(label, [found[label,]], minutes) for label in _tried(settings) if "planned" in label],
            ),
        ],
        ["setting", "rounds", "final accuracy (%)", "best (%)", "simulated s", "last cuts and intervals", "ended by"],
        rows,
        [],
        ["With every interval 1, IID and non-IID data train alike: every round steps along the mean gradient."],
    )


def _by_round(label: str, found: Found) -> Series:
    return over_seeds(label, [found[label,]], lambda line: float(line["round"]))  # type: ignore[arg-type]


MODELS = ("paper", "refined")


def models_runs(settings: Settings) -> Wanted:
    wanted: Wanted = {}
    seed = settings.seeds[0]
    for partition in PARTITIONS:
        for model in MODELS:
            wanted[partition, model] = settings.scenario(
                settings.dataset, partition, seed, {"convergence.drift": model}
            )
        wanted[partition, FULL_SYNC] = settings.scenario(
            settings.dataset, partition, seed, fixed(full_sync_cuts(settings), (1, 1))
        )
    return wanted


def models(settings: Settings, found: Found) -> Result:
    """What each drift model plans with the same target, and what that reaches."""
    panels, rows, claims = [], [], []
    for partition, word in PARTITIONS.items():
        of = {label: found[partition, label] for label in (*MODELS, FULL_SYNC)}
        target = target_below([of[FULL_SYNC]])
        panels.append(
            Panel(
                word,
                "simulated minutes",
                "test accuracy (%)",
                [over_seeds(label, [run], minutes) for label, run in of.items()],
                level=100 * target,
            )
        )
        for label, run in of.items():
            plans = dict.fromkeys(f"{plan['cuts']} {plan['intervals']}" for plan in run.plans)
            rows.append(
                [
                    word,
                    label,
                    round(100 * final_accuracy(run), 2),
                    f"{target:.0%}",
                    round(time_to(run, target), 1) if np.isfinite(time_to(run, target)) else "never",
                    round(run.metrics[-1]["time_s"]),
                    "; ".join(plans),
                ]
            )
        behind = 100 * (final_accuracy(of[FULL_SYNC]) - final_accuracy(of["refined"]))
        sooner = time_to(of[FULL_SYNC], target) / time_to(of["refined"], target)
        claims.append(
            Claim(
                f"the refined model plans within a point of full synchronisation, and faster ({word})",
                "not in the paper",
                f"{abs(behind):.1f} points {'under' if behind > 0 else 'above'} it, {sooner:.2f}x as fast to "
                f"{target:.0%}",
                HOLDS if behind <= 1 and sooner > 1 else IN_PART if behind <= 1 else FAILS,
            )
        )
    return Result(
        "models",
        f"Plans by the paper's drift model and by the refined one ({settings.dataset})",
        panels,
        ["partition", "drift model", "final accuracy (%)", "target", "s to target", "s in all", "plans"],
        rows,
        claims,
        ["Both plan with the constants measured while training and the same target."],
    )


def drift_runs(settings: Settings) -> Wanted:
    """Runs of other recipes that were averaged at several intervals."""
    wanted = {key: value for key, value in models_runs(settings).items() if key[1] == "refined"}
    return wanted | {
        (partition, "measured"): settings.scenario(
            settings.dataset, partition, settings.seeds[0], {"convergence.slack": 10.0}
        )
        for partition in PARTITIONS
    }


def drift(settings: Settings, found: Found) -> Result:
    """Every average of planned runs: the drift just before it, and what both models said."""
    panels, rows, claims = [], [], []
    for partition, word in PARTITIONS.items():
        seen = [
            entry
            for key, run in found.items()
            if key[0] == partition
            for line in run.metrics
            for entry in line.get("drift", {}).values()
            if entry["measured"] > 0 and entry["rounds"] > 1 and entry.get("refined") and entry.get("paper")
        ]
        step = max(1, len(seen) // 400)
        ratios = {model: np.array([entry[model] / entry["measured"] for entry in seen]) for model in MODELS}
        panels.append(
            Panel(
                word,
                "measured drift",
                "predicted drift",
                [
                    Series(model, [e["measured"] for e in seen[::step]], [e[model] for e in seen[::step]])
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
            "planned run, intervals of 2 and more. Ratios are predicted / measured.",
            "The refined model is corrected by what was seen before, tier by tier; the paper's is a bound.",
        ],
    )
