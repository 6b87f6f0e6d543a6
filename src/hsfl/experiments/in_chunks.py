"""The runs of `beyond` once more, with mini-batches that go through the tiers in chunks: only their rounds are shorter.

The mean gradient of the chunks of a mini-batch is that of the mini-batch, so that nothing is learnt otherwise and
nothing has to be trained again. Plans stay what they were, made for mini-batches in one piece.
"""

from __future__ import annotations

from dataclasses import replace

from hsfl.experiments.benchmarks import FULL_SYNC
from hsfl.experiments.gains import (
    AIMS,
    CODED_SYNC,
    CORRECTED,
    NUMBERS,
    PLANNED,
    TOGETHER,
    fast_enough,
    numbers,
    partitions,
    surely_faster,
    variants,
)
from hsfl.experiments.recipe import Found
from hsfl.experiments.result import Panel, Result, Series
from hsfl.experiments.settings import Settings
from hsfl.experiments.statistics import MORE_ERROR, slowdown, target_of
from hsfl.planner.baselines import CHUNKS
from hsfl.problem.problem import Problem
from hsfl.records import RoundRecord
from hsfl.runs.reading import Run
from hsfl.theory.latency import split_latency

#: In how many chunks a mini-batch goes; claims are about `CHUNKS`.
COUNTS = (1, 2, CHUNKS, 2 * CHUNKS)


def timed_in_chunks(run: Run, problem: Problem, chunks: int) -> Run:
    """A run as it would have been in so many chunks, on the problem's machines, which do not change: its rounds of
    split training are shorter, and averages, moves and measuring take as long as they did."""
    pieces = replace(problem, chunks=chunks)
    saved = [float(split_latency(problem, plan.cuts) - split_latency(pieces, plan.cuts)) for plan in run.plans]
    begins = [plan.round for plan in run.plans]

    def sooner(line: RoundRecord) -> RoundRecord:
        ends = [min(line.round, end) for end in (*begins[1:], line.round)]
        held = (max(0, end - begin) for begin, end in zip(begins, ends, strict=True))
        seconds = sum(rounds * each for rounds, each in zip(held, saved, strict=True))
        return line.model_copy(update={"time_s": line.time_s - seconds})

    return replace(run, metrics=[sooner(line) for line in run.metrics])


def beyond_in_chunks(settings: Settings, found: Found) -> Result:
    """What shorter rounds add to planning, corrected averages and coded links."""
    panels, rows, claims = [], [], []
    for partition, word in partitions(settings).items():
        of: dict[int, dict[str, list[Run]]] = {count: {} for count in COUNTS}
        for label, overrides in variants(settings).items():
            problem = settings.scenario(settings.dataset, partition, settings.seeds[0], overrides).training_problem
            for count in COUNTS:
                whole = (found[partition, label, seed] for seed in settings.some_seeds)
                of[count][label] = [timed_in_chunks(run, problem, count) for run in whole]
        sync = of[1][FULL_SYNC]
        target, lines = target_of(sync), []
        for label in variants(settings):
            gains = [slowdown(sync, of[count][label], target) for count in COUNTS]
            for count, gain in zip(COUNTS, gains, strict=True):
                rows.append([word, label, count, *numbers(of[count][label], target), gain.text(2)])
            if all(gain.mean for gain in gains):
                low, high = ([end(gain.values) for gain in gains] for end in (min, max))
                lines.append(Series(label, COUNTS, [gain.mean for gain in gains], low, high))
        panels.append(
            Panel(word, "chunks of a mini-batch", "times as fast as full sync", lines, log_x=True, log_y=True)
        )
        four = of[CHUNKS]
        for label, aims in AIMS.items():
            what = f"{label}, {CHUNKS} chunks: {{}} as full synchronisation in one piece"
            claims.append(fast_enough(what, word, target, aims[partition], sync, four[label]))
        for label, other in ((TOGETHER, CODED_SYNC), (CORRECTED, FULL_SYNC), (PLANNED, FULL_SYNC)):
            what = f"{label}, {CHUNKS} chunks: faster than {other} in as many"
            claims.append(surely_faster(what, word, target, four[other], four[label]))
    samples = settings.scenario(settings.dataset, "iid", settings.seeds[0]).spec.training.batch_size
    return Result(
        "chunks",
        f"The runs of beyond with mini-batches in chunks ({settings.dataset})",
        panels,
        ["partition", "trained", "chunks", *NUMBERS, "times as fast as full sync"],
        rows,
        claims,
        [
            "No run is trained in chunks for it: they have the mean gradient of their mini-batch, so that the runs are "
            "those of beyond, up to rounding, with the same plans, and only rounds of split training are timed anew. "
            "Averages, moves and measuring take as long as they did. Plans made for chunks are not trained.",
            "One chunk is beyond. Times as fast: as full synchronisation at its best cuts in one piece, with plain "
            f"averages and 32 bits, whose final error times {MORE_ERROR} is the target. Speed holds if the mean is at "
            "the aim, which is that of beyond, set for mini-batches in one piece, and in part if it is above 1; faster "
            "in as many chunks holds if the confidence interval is above 1, and is open if it has 1 in it.",
            f"A mini-batch has {samples} samples per client. Links take their time per bit: what a message costs "
            "besides, which sets an end to more and smaller ones, is not in the model.",
        ],
    )
