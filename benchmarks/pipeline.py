"""What mini-batches in chunks, or several in a round, gain on the clock: the paper's system, for k = 1, 2, 4 and 8.

    python benchmarks/pipeline.py

Nothing is trained. A mini-batch of 16 in k chunks has the same gradient, so that all that changes is what the tiers do
at the same time. Rounds of k mini-batches of 16 have more samples, and less noise.
"""

from __future__ import annotations

from dataclasses import replace

import hsfl
from hsfl.planner.solve import solve
from hsfl.problem.problem import Problem
from hsfl.theory.latency import split_latency

COUNTS = (1, 2, 4, 8)


def rows(problem: Problem, cuts: tuple[int, ...]) -> list[tuple[str, ...]]:
    """A row for every number: rounds at the cuts of the plan for one, and times to target of the best plans."""
    found = []
    for count in COUNTS:
        split, more = replace(problem, chunks=count), replace(problem, micro_batches=count)
        plan, round_s, long_s = solve(split), split_latency(split, cuts), split_latency(more, cuts)
        found.append(
            (
                str(count),
                f"{1e3 * float(round_s):.1f} ms",
                f"{float(split_latency(problem, cuts)) / float(round_s):.2f} ×",
                f"{plan.total_latency_s:.0f} s",
                ", ".join(map(str, plan.cuts)),
                f"{1e3 * float(long_s):.1f} ms",
                f"{count * float(split_latency(problem, cuts)) / float(long_s):.2f} ×",
            )
        )
    return found


def main() -> None:
    problem = hsfl.load_scenario("paper").problem
    plan = hsfl.plan("paper")
    print(f"paper, split training at the cuts {', '.join(map(str, plan.cuts))}, averages aside\n")
    print("| k | round in k chunks | gain | best plan's time | its cuts | round, k of 16 | gain over k rounds |")
    print("|---|---|---|---|---|---|---|")
    for row in rows(problem, plan.cuts):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
