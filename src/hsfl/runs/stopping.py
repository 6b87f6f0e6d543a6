"""When training ends."""

from __future__ import annotations

from collections.abc import Sequence

from hsfl.scenario.schema import ScenarioFile
from hsfl.scenario.strategy_sections import StoppingSection
from hsfl.theory.forecast import recent_losses

DEFAULT_ROUNDS = 1000
#: Converged: the mean accuracy of so many evaluations gains less than this on that of as many before.
WINDOW, LEAST_GAIN = 10, 0.0002


def round_limit(rules: StoppingSection) -> float:
    """The last round; infinite where something else ends training."""
    if rules.rounds is not None:
        return rules.rounds
    others = (rules.time_limit, rules.until_accuracy, rules.until_loss, rules.until_converged or None)
    return DEFAULT_ROUNDS if all(rule is None for rule in others) else float("inf")


def horizon(scenario: ScenarioFile) -> int | None:
    """The round at which a cosine has come down; None where there is none, or nothing says when."""
    training, limit = scenario.training, round_limit(scenario.stopping)
    if training.schedule != "cosine" or (training.horizon is None and limit == float("inf")):
        return None
    return training.horizon or int(limit)


def ended(
    rules: StoppingSection, round_: int, time_s: float, accuracies: Sequence[float], losses: Sequence[float] = ()
) -> str | None:
    """Why training is over, or None: "rounds", "time", "accuracy", "loss" or "converged".

    `losses` are those of all rounds up to an evaluation.
    """
    if rules.until_accuracy is not None and accuracies and accuracies[-1] >= rules.until_accuracy:
        return "accuracy"
    if rules.until_loss is not None and losses and recent_losses(losses)[-1] <= rules.until_loss:
        return "loss"
    if rules.until_converged and is_converged(accuracies):
        return "converged"
    if round_ >= round_limit(rules):
        return "rounds"
    if rules.time_limit is not None and time_s >= rules.time_limit:
        return "time"
    return None


def is_converged(accuracies: Sequence[float]) -> bool:
    """Whether the last WINDOW evaluations are together hardly better than the WINDOW before them."""
    if len(accuracies) < 2 * WINDOW:
        return False
    last, before = accuracies[-WINDOW:], accuracies[-2 * WINDOW : -WINDOW]
    return (sum(last) - sum(before)) / WINDOW < LEAST_GAIN
