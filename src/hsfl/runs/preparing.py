"""From a scenario to what the algorithm trains: model, data, backend, strategy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hsfl import data, models
from hsfl.data.partition import label_counts, partition
from hsfl.engine import BACKENDS, Backend
from hsfl.engine.algorithm import Task
from hsfl.engine.averaging import AveragingRule
from hsfl.engine.selfcheck import check_by_client
from hsfl.engine.sharded import ShardedBackend
from hsfl.engine.sharding import Processes
from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.problem import Problem
from hsfl.problem.strategy import Strategy
from hsfl.records import Labels
from hsfl.runs.processes import number_here
from hsfl.scenario.catalog import DEFAULT_INPUT_SHAPES
from hsfl.scenario.dynamics import Conditions
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import checked, make_strategy


@dataclass(frozen=True)
class Prepared:
    """A scenario made ready to train."""

    task: Task
    backend: Backend
    labels: Labels | None
    """How many samples of each label every client has; None for data without one label per sample."""
    device: torch.device


def prepare(
    scenario: Scenario,
    strategy: Strategy | None = None,
    data_folder: Path | None = None,
    backend: type[Backend] | None = None,
    processes: Processes | None = None,
) -> Prepared:
    """Build everything; ScenarioError names what is wrong before anything is trained.

    `backend` is used instead of the scenario's. `processes` are those that train together, where there are several.
    """
    spec, training, execution = scenario.spec, scenario.spec.training, scenario.spec.execution
    backend = backend or BACKENDS[execution.backend]
    among: dict[str, Any] = {}
    if processes is not None and processes.size > 1:
        backend, among = ShardedBackend, {"processes": processes}
    if spec.data is None:
        raise ScenarioError(
            f'{scenario.source}: data is missing; add a section [data] with name = "mnist-mini" or another, or give '
            "--set data.name=mnist-mini"
        )
    try:
        strategy = make_strategy(scenario) if strategy is None else checked(strategy, "strategy")
        device = (_own_device if among else choose_device)(execution.device)
        if execution.precision == "tf32" and device.type != "cuda":
            raise ScenarioError('execution.precision = "tf32": only on CUDA; write "fp32" or "bf16"')
        problem = scenario.training_problem
        if strategy.needs_constants and scenario.caveat is not None:
            warnings.warn(scenario.caveat, stacklevel=2)
        if strategy.needs_constants and spec.strategy.constants == "measured":
            scenario.with_target(problem)  # says at once when no target is given
        seed = spec.seed if training.seed is None else training.seed
        shape = tuple(spec.model.input_shape or DEFAULT_INPUT_SHAPES.get(spec.model.name or "", ()))
        network = _network(scenario, seed)
        dataset = data.load_dataset(
            spec.data, input_shape=shape, scenario_folder=scenario.folder, data_folder=data_folder
        )
        targets = dataset.train[1].numpy()
        parts = partition(spec.data, targets, problem.system.num_clients, seed, scenario.folder)
        sampler = data.Sampler(parts, training.batch_size, seed, spec.data.augment)
        feed = data.Feed(dataset, sampler, device)
        layers = list(models.chain(network, feed.samples(torch.arange(2, device=device))[0].cpu()))
        _check(layers, problem, dataset)
        size = min(2, training.batch_size)
        some = feed.samples((torch.arange(2 * size, device=device) % len(targets)).view(2, size))
        check_by_client(layers, *some, device, together=backend.together)
        made = backend(
            layers,
            [hosts.tolist() for hosts in problem.system.hosts],
            list(range(1, len(spec.tiers))),
            _optimizer(problem, training.optimizer, training.weight_decay),
            data=feed,
            averaging=AveragingRule(average_state=True) if training.average_optimizer else training.averaging,
            codes=[tier.codes for tier in problem.system.tiers],
            device=device,
            precision=execution.precision,
            seed=seed,
            **among,
        )
    except HsflError as error:
        text = str(error)
        if text.startswith(scenario.source):
            raise
        raise ScenarioError(f"{scenario.source}: {text}") from error
    task = Task(
        problem=problem,
        strategy=strategy,
        conditions=Conditions(scenario).at,
        with_target=scenario.with_target,
        measure_constants=spec.strategy.constants == "measured",
        probe_batches=spec.strategy.probe_batches,
        replan_every=spec.strategy.replan_every,
    )
    labels = None
    if targets.ndim == 1:
        counts = label_counts(parts, targets, dataset.num_classes)
        labels = Labels(labels=[str(k) for k in range(dataset.num_classes)], counts=counts.tolist())
    return Prepared(task, made, labels, device)


def choose_device(name: str) -> torch.device:
    """The device of a scenario; "auto" is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError
        if device.type == "cuda":
            if not torch.cuda.is_available():
                raise ScenarioError(f"execution.device = {name!r}: there is no CUDA here; write cpu or auto")
            if (device.index or 0) >= torch.cuda.device_count():
                raise ScenarioError(f"execution.device = {name!r}: there are {torch.cuda.device_count()} CUDA devices")
    except RuntimeError:
        raise ScenarioError(f"execution.device = {name!r}: write cpu, cuda, cuda:1 or auto") from None
    return device


def _own_device(name: str) -> torch.device:
    """The device of one of several processes: on CUDA, each takes the one of its number on its machine."""
    device, number, there = choose_device(name), number_here(), torch.cuda.device_count()
    if device.type == "cpu":
        return device
    if device.index is not None:
        raise ScenarioError(f"execution.device = {name!r}: every process has one of its own; write cpu or cuda")
    if number >= there:
        raise ScenarioError(
            f"execution.device = {name!r}: process {number + 1} on this machine needs a GPU of its own, and there are "
            f"{there}; start {there}, or write cpu"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _network(scenario: Scenario, seed: int) -> nn.Module:
    """The model with the initial weights of the seed."""
    model = scenario.spec.model
    if model.profile is not None:
        raise ScenarioError(
            "model.profile: a profile has costs but no weights, so it can be planned but not trained; give name or "
            "factory"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model.factory is not None:
            return models.load_factory(model.factory, scenario.folder)
        assert model.name is not None
        return models.build(model.name, tuple(model.input_shape or models.input_shape(model.name)))


def _check(layers: list[nn.Module], problem: Problem, dataset: data.Dataset) -> None:
    if len(layers) != problem.num_layers:
        raise ScenarioError(f"the model has {len(layers)} layers, its profile {problem.num_layers}; measure it again")
    classes = [p.shape[0] for p in layers[-1].parameters() if p.ndim > 1][-1:]
    if classes and dataset.num_classes > classes[0] and dataset.train[1].ndim == 1:
        raise ScenarioError(
            f"data: {dataset.num_classes} classes, but the model tells {classes[0]} apart; give it more outputs"
        )


def _optimizer(problem: Problem, name: str, weight_decay: float) -> dict[str, Any]:
    settings: dict[str, Any] = {"lr": problem.learning_rate, "weight_decay": weight_decay}
    if name == "momentum":
        return settings | {"name": "sgd", "momentum": problem.momentum}
    return settings | {"name": name}
