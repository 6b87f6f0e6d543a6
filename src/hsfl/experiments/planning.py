"""How the setting was found, what drift models and tolerances plan and reach, and how well drift is predicted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hsfl.experiments.benchmarks import FULL_SYNC, PARTITIONS, as_accurate, full_sync_cuts
from hsfl.experiments.motivation import falling
from hsfl.experiments.recipe import Found, Wanted
from hsfl.experiments.result import FAILS, HOLDS, IN_PART, Claim, Panel, Result, Series
from hsfl.experiments.settings import SLACK, Settings, fixed
from hsfl.experiments.statistics import (
    Spread,
    curves,
    end_s,
    final_accuracy,
    finals,
    slowdown,
    target_of,
    times_to,
)
from hsfl.runs.reading import Run

_GROUP_NORM: dict[str, Any] = {
    "model.factory": "hsfl.experiments.networks:vgg16_group_norm",
    "model.input_shape": [3, 32, 32],
    "convergence.gradient_variance": None,
    "convergence.gradient_second_moment": None,
}

#: The group of runs of `setting` that plan.
PLANNED = "planned"


def _step(optimizer: str, rate: float) -> dict[str, Any]:
    return {"training.optimizer": optimizer, "training.learning_rate": rate}


def _tried(settings: Settings) -> dict[str, dict[str, dict[str, Any]]]:
    """Full synchronisation with several optimisers, steps and normalisations, and plans.

    The overrides by group and label. The group `mnist` is trained on MNIST, the others on CIFAR-10.
    """
    if settings.quick:
        sync = fixed(settings.cuts, (1, 1))
        return {
            "full synchronisation": {"SGD 0.01": sync | _step("sgd", 0.01), "momentum 0.01": sync},
            PLANNED: {"momentum 0.01, planned": {}},
        }
    sync = fixed((4, 7), (1, 1))
    steps = {
        "SGD 0.0005 (the paper)": sync | _step("sgd", 5e-4),
        "SGD 0.1": sync | _step("sgd", 0.1),
        "momentum 0.005": sync | _step("momentum", 0.005),
        "momentum 0.01": sync,
        "momentum 0.01, 3,000 rounds": sync | {"stopping.rounds": 3000},
        "momentum 0.02": sync | _step("momentum", 0.02),
    }
    others = {
        "momentum 0.01, I = 50": fixed(settings.cuts, (50, 50)),
        "momentum 0.02, I = 50": fixed(settings.cuts, (50, 50)) | _step("momentum", 0.02),
        "group norm, momentum 0.003": sync | _GROUP_NORM | _step("momentum", 0.003),
        "group norm, momentum 0.01": sync | _GROUP_NORM,
        "group norm, momentum 0.03": sync | _GROUP_NORM | _step("momentum", 0.03),
    }
    planned = {
        "momentum 0.01, planned": {},
        "momentum 0.02, planned": _step("momentum", 0.02),
        "momentum 0.01, averaged too, planned": {"training.average_optimizer": True},
    }
    mnist = {f"mnist, momentum {rate:g}": sync | _step("momentum", rate) for rate in (0.005, 0.01, 0.02)}
    mnist |= {f"mnist, momentum {rate:g}, planned": _step("momentum", rate) for rate in (0.005, 0.01)}
    return {"full synchronisation": steps, "rare averages, group norm": others, PLANNED: planned, "mnist": mnist}


def setting_runs(settings: Settings) -> Wanted:
    return {
        (group, label): settings.scenario(
            group if group == "mnist" else settings.dataset, "shards", settings.seeds[0], overrides
        )
        for group, tried in _tried(settings).items()
        for label, overrides in tried.items()
    }


def setting(settings: Settings, found: Found) -> Result:
    rows = []
    for (_, label), run in found.items():
        last = run.plans[-1]
        rows.append(
            [
                label,
                run.metrics[-1].round,
                round(100 * final_accuracy(run), 2),
                round(100 * max(line.accuracy or 0.0 for line in run.evaluations()), 2),
                round(run.metrics[-1].time_s),
                f"{last.cuts} {last.intervals}",
                run.summary.ended if run.summary else "",
            ]
        )
    return Result(
        "setting",
        f"What trains: full synchronisation and plans ({' and '.join(settings.datasets)}, non-IID)",
        [
            curves(group, {label: [run] for (of, label), run in found.items() if of == group}, **_axis(group))
            for group in _tried(settings)
        ],
        ["setting", "rounds", "final accuracy (%)", "best (%)", "simulated s", "last cuts and intervals", "ended by"],
        rows,
        [],
        [
            "With every interval 1, IID and non-IID data train alike, at any cuts: every round steps along the mean "
            "gradient. So cuts change the seconds of full synchronisation only; here they are (4, 7)."
        ],
    )


def _axis(group: str) -> dict[str, Any]:
    """The axis of a group: simulated time for plans, which differ in it, rounds for all else."""
    return {} if group == PLANNED else {"x": lambda line: float(line.round), "x_label": "rounds"}


MODELS = ("paper", "refined")
SLACKS = {f"slack {slack:g}": {"convergence.slack": slack} for slack in (1.0, SLACK, 10.0)}
_COLUMNS = ("final accuracy (%)", "target", "s to target", "times full sync's", "s in all", "plans")
_FIRST = "Plans are those of the first seed."


def models_runs(settings: Settings) -> Wanted:
    return _with_full_sync(settings, {model: {"strategy.drift": model} for model in MODELS})


def slack_runs(settings: Settings) -> Wanted:
    return _with_full_sync(settings, SLACKS)


def _with_full_sync(settings: Settings, planned: dict[str, dict[str, Any]]) -> Wanted:
    return {
        (partition, label, seed): settings.scenario(settings.dataset, partition, seed, overrides)
        for partition in PARTITIONS
        for label, overrides in (planned | {FULL_SYNC: fixed(full_sync_cuts(settings), (1, 1))}).items()
        for seed in settings.seeds
    }


def models(settings: Settings, found: Found) -> Result:
    """What each drift model plans with the same target, and what its plans reach."""
    panels, rows, claims = [], [], []
    for partition, word in PARTITIONS.items():
        of, target = _gains(settings, found, partition, MODELS)
        panels.append(curves(word, of, level=100 * target))
        rows += _rows(word, of, target)
        sooner = slowdown(of[FULL_SYNC], of["refined"], target)
        claims += [
            as_accurate(
                f"the refined model plans within a point of full synchronisation ({word})",
                of["refined"],
                of[FULL_SYNC],
                "not in the paper",
            ),
            Claim(
                f"the refined model plans faster than full synchronisation ({word}), time to {target:.0%}",
                "not in the paper",
                sooner.text(2),
                HOLDS if sooner.mean > 1 else FAILS,
            ),
        ]
    return Result(
        "models",
        f"Plans by the paper's drift model and by the refined one ({settings.dataset})",
        panels,
        ["partition", "drift model", *_COLUMNS],
        rows,
        claims,
        [f"Both plan with the constants measured while training and the same target. {_FIRST}"],
    )


def slack(settings: Settings, found: Found) -> Result:
    """What more tolerance for drift makes of a plan."""
    panels, rows, claims = [], [], []
    for partition, word in PARTITIONS.items():
        of, target = _gains(settings, found, partition, SLACKS)
        panels.append(curves(word, of, level=100 * target))
        rows += _rows(word, of, target)
        final = [finals(of[label]).mean for label in SLACKS]
        seconds = [_whole_time(of[label]).mean for label in SLACKS]
        shorter = sorted(seconds, reverse=True) == seconds and seconds[-1] < seconds[0]
        lower = falling(final) == HOLDS
        claims.append(
            Claim(
                f"more slack: shorter rounds, less accuracy ({word})",
                "not in the paper",
                "; ".join(f"{label}: {s:.0f} s, {f:.1f} %" for label, s, f in zip(SLACKS, seconds, final, strict=True)),
                HOLDS if shorter and lower else IN_PART if shorter or lower else FAILS,
            )
        )
    return Result(
        "slack",
        f"Plans that allow more and more drift ({settings.dataset})",
        panels,
        ["partition", "planned with", *_COLUMNS],
        rows,
        claims,
        [f"Slack s: the bound may end at 1 + s times what full synchronisation would reach by it. {_FIRST}"],
    )


def _gains(
    settings: Settings, found: Found, partition: str, labels: Iterable[str]
) -> tuple[dict[str, list[Run]], float]:
    """The runs by label, and the target that full synchronisation sets."""
    of = {label: [found[partition, label, seed] for seed in settings.seeds] for label in (*labels, FULL_SYNC)}
    return of, target_of(of[FULL_SYNC])


def _rows(word: str, of: dict[str, list[Run]], target: float) -> list[list[Any]]:
    return [
        [
            word,
            label,
            finals(runs).text(2),
            f"{target:.0%}",
            times_to(runs, target).text(0),
            slowdown(runs, of[FULL_SYNC], target).text(2),
            _whole_time(runs).text(0),
            "; ".join(dict.fromkeys(f"{plan.cuts} {plan.intervals}" for plan in runs[0].plans)),
        ]
        for label, runs in of.items()
    ]


def _whole_time(runs: list[Run]) -> Spread:
    return Spread(tuple(map(end_s, runs)))


def drift_runs(settings: Settings) -> Wanted:
    """The planned runs of `slack`."""
    return {key: scenario for key, scenario in slack_runs(settings).items() if key[1] != FULL_SYNC}


def drift(settings: Settings, found: Found) -> Result:
    """Every average of planned runs: the drift just before it, and what both models said."""
    panels, rows, claims = [], [], []
    for partition, word in PARTITIONS.items():
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
