"""What a run minimises, what it counts, and its steps: by name, by functions of the user's own, or from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hsfl.engine.losses import LOSSES, METRICS, Loss, Metric, accuracy
from hsfl.engine.step_schedule import StepSchedule, cosine, steps, warmed_up
from hsfl.errors import ScenarioError
from hsfl.factory import Factory, given_name
from hsfl.problem.strategy import Strategy
from hsfl.runs.stopping import horizon
from hsfl.scenario.scenario import Scenario
from hsfl.scenario.strategy_sections import StoppingSection
from hsfl.scenario.toml_format import toml_value

#: What metrics of one's own may not be called: it is there already.
_TAKEN = ("loss", "test_loss")


@dataclass(frozen=True)
class Objective:
    """The loss and the metrics, None for the usual ones; with names, by which a run knows them again."""

    loss: Loss
    metrics: dict[str, Metric] | None
    name: str

    def counted(self, stopping: StoppingSection, *, classes: bool) -> dict[str, Metric]:
        """The metrics of data whose targets are classes, or not; ScenarioError where stopping needs another."""
        usual: dict[str, Metric] = {"accuracy": accuracy} if classes else {}
        found = usual if self.metrics is None else self.metrics
        waits = {"until_accuracy": stopping.until_accuracy is not None, "until_converged": stopping.until_converged}
        for field in (field for field, wanted in waits.items() if wanted):
            if "accuracy" not in found:
                why = "training.metrics has no accuracy" if classes else "the targets are no classes"
                raise ScenarioError(
                    f"stopping.{field}: {why}, so that there is none to wait for; give stopping.until_loss or rounds"
                )
        return found


@dataclass(frozen=True)
class Given:
    """A loss and metrics as objects from Python, instead of the scenario's; None where the scenario's are meant."""

    loss: Loss | None = None
    metrics: Mapping[str, Metric] | Iterable[str | Metric] | None = None


def naming(scenario: Scenario, loss: Loss) -> Scenario:
    """The scenario with a name that stands for a loss given from Python, so that who goes on is asked for it."""
    return scenario.with_overrides({"training.loss": given_name(loss)})


#: The scenario's.
AS_NAMED = Given()


def objective(scenario: Scenario, given: Given = AS_NAMED) -> Objective:
    """What the scenario names, or what is given instead."""
    training = scenario.spec.training
    loss = LOSSES.get(training.loss) if given.loss is None else given.loss
    if loss is None:
        loss = _own(scenario, "training.loss", training.loss)
    if not callable(loss) or isinstance(loss, type):
        raise ScenarioError(f"loss: {loss!r} is no function of outputs and targets; give one")
    name = training.loss if given.loss is None else _name(loss)
    wanted = training.metrics if given.metrics is None else given.metrics
    if wanted is None:
        return Objective(loss, None, name)
    pairs = list(wanted.items()) if isinstance(wanted, Mapping) else [_named(scenario, one) for one in _listed(wanted)]
    metrics: dict[str, Metric] = {}
    for metric_name, metric in pairs:
        if not callable(metric) or isinstance(metric, type):
            raise ScenarioError(f"metrics: {metric!r} is no function of outputs and targets; give functions")
        if metric_name in metrics or metric_name in _TAKEN:
            raise ScenarioError(f"metrics: {metric_name!r} is taken; give every metric a name of its own")
        metrics[metric_name] = metric
    return Objective(loss, metrics, name)


def step_schedule(scenario: Scenario) -> StepSchedule | None:
    """How the learning rate changes; None where it does not. ScenarioError where fields do not go together."""
    training, warmup = scenario.spec.training, scenario.spec.training.warmup
    for field, kind in (("horizon", "cosine"), ("decay_rounds", "steps"), ("decay", "steps")):
        if getattr(training, field) is not None and training.schedule != kind:
            raise ScenarioError(f'training.{field}: only with training.schedule = "{kind}"; remove it')
    schedule: StepSchedule | None = None
    if training.schedule == "cosine":
        if (end := horizon(scenario.spec)) is None:
            raise ScenarioError(
                'training.schedule = "cosine": nothing says when it ends; give training.horizon or stopping.rounds'
            )
        if warmup >= end:
            raise ScenarioError(
                f"training.warmup = {warmup}: the cosine ends at round {end}, before it begins; warm up for fewer"
            )
        schedule = cosine(end, warmup)
    elif training.schedule == "steps":
        at = training.decay_rounds
        if at is None:
            raise ScenarioError('training.schedule = "steps": training.decay_rounds is missing; add it')
        if at != sorted(set(at)):
            raise ScenarioError(f"training.decay_rounds = {at}: they must rise; sort them, each once")
        schedule = steps(at, 0.1 if training.decay is None else training.decay)
    elif training.schedule != "constant":
        schedule = _own(scenario, "training.schedule", training.schedule)
    return warmed_up(schedule or (lambda round_: 1.0), warmup) if warmup else schedule


def check_micro_batches(scenario: Scenario, strategy: Strategy, *, machines: bool) -> None:
    """ScenarioError where rounds cannot have so many mini-batches, or their number cannot be planned."""
    problem, training = scenario.training_problem, scenario.spec.training
    given, deadline = toml_value(training.micro_batches), scenario.spec.execution.deadline
    if machines and training.micro_batches != 1:
        raise ScenarioError(
            f"training.micro_batches = {given}: machines train on one mini-batch in a round; remove it, or simulate it "
            "with hsfl train"
        )
    if machines and training.chunks > 1 and deadline is not None:
        raise ScenarioError(
            f"training.chunks = {training.chunks}: machines that leave out who is late (execution.deadline = "
            f"{deadline:g} s) take mini-batches in one piece; remove one of them"
        )
    if problem.constants.by_loss and getattr(strategy, "plans_micro_batches", False):
        raise ScenarioError(
            f'training.micro_batches = {given}: it cannot be planned with strategy.drift = "energy", which does not '
            'weigh the noise of gradients; give a number, or strategy.drift = "refined" with a target in [convergence]'
        )


def _own(scenario: Scenario, field: str, spec: str) -> Callable[..., Any]:
    return Factory(spec, scenario.folder, f"{field} = {spec}", ScenarioError).find()


def _named(scenario: Scenario, metric: str | Metric) -> tuple[str, Metric]:
    """A metric by its name, or a function, with what it is called."""
    if not isinstance(metric, str):
        return _name(metric), metric
    if ":" not in metric and metric not in METRICS:
        known = ", ".join(METRICS)
        raise ScenarioError(f"training.metrics = {metric}: give {known}, or your own: package.module:function")
    return metric.rpartition(":")[2], METRICS.get(metric) or _own(scenario, "training.metrics", metric)


def _listed(given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ScenarioError(
            f"metrics: {given!r} is given; give a list of functions or names, or a dictionary of functions by name"
        )
    return list(given)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)
