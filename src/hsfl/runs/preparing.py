"""From a scenario to what the algorithm trains: model, data, backend, strategy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hsfl import data, models
from hsfl.data.holding_out import held_out
from hsfl.data.partition import OwnDraws
from hsfl.engine import BACKENDS, Backend
from hsfl.engine.algorithm import Task
from hsfl.engine.asking import proposed
from hsfl.engine.averaging import RULES
from hsfl.engine.losses import LOSSES, are_classes, cross_entropy, targets_of
from hsfl.engine.running import run_layer
from hsfl.engine.selfcheck import check_by_client, check_in_chunks
from hsfl.engine.sharded import ShardedBackend
from hsfl.engine.sharding import Processes
from hsfl.errors import HsflError, ScenarioError
from hsfl.problem.problem import Problem
from hsfl.problem.strategy import Strategy
from hsfl.records import Labels
from hsfl.runs.learning import AS_NAMED, Given, Objective, check_micro_batches, objective, step_schedule
from hsfl.runs.participating import check_place, participation_of
from hsfl.runs.processes import number_here
from hsfl.runs.samples import labels_of
from hsfl.scenario.catalog import CLASSES
from hsfl.scenario.data_section import DataSection
from hsfl.scenario.dynamics import Conditions
from hsfl.scenario.scenario import Scenario
from hsfl.strategies import Named, checked, make_strategy


@dataclass(frozen=True)
class Brought:
    """The data that a machine of a run has, and nobody else: of which client, and a file or a function that gives it.

    None where it has none.
    """

    client: int | None = None
    where: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A scenario made ready to train."""

    task: Task
    backend: Backend
    labels: Labels | None
    """How many samples of each label every client has; None for data without one label per sample."""
    device: torch.device
    objective: Objective
    held: list[torch.Tensor] | None = None
    """The numbers of the samples that each client does not train on, where such are held out."""
    evaluates: bool = True
    """Whether there is test data."""
    evaluates_clients: bool = False
    """Whether every client's own model is evaluated on them, too."""


def prepare(
    scenario: Scenario,
    strategy: Strategy | None = None,
    data_folder: Path | None = None,
    backend: type[Backend] | None = None,
    processes: Processes | None = None,
    brought: Brought | None = None,
    given: Given = AS_NAMED,
) -> Prepared:
    """Build everything; ScenarioError names what is wrong before anything is trained.

    `backend` is used instead of the scenario's. `processes` are those that train together, where there are several.
    `brought` is what a machine of a run has of data that is elsewhere; without it, the test data is read. `given` are
    a loss and metrics instead of the scenario's.
    """
    spec, training, execution = scenario.spec, scenario.spec.training, scenario.spec.execution
    backend = backend or BACKENDS[execution.backend]
    among: dict[str, Any] = {}
    if processes is not None and processes.size > 1:
        backend, among = ShardedBackend, {"processes": processes}
    section = scenario.data
    try:
        strategy = make_strategy(scenario) if strategy is None else checked(strategy, "strategy")
        device = (_own_device if among else choose_device)(execution.device)
        if execution.precision == "tf32" and device.type != "cuda":
            raise ScenarioError('execution.precision = "tf32": only on CUDA; write "fp32" or "bf16"')
        problem = scenario.training_problem
        machines = backend.data_elsewhere
        check_place(scenario, processes=1 if processes is None else processes.size, machines=machines)
        participation = None if machines else participation_of(scenario)
        check_micro_batches(scenario, strategy, machines=machines)
        if strategy.needs_constants and scenario.caveat is not None:
            warnings.warn(scenario.caveat, stacklevel=2)
        if strategy.needs_constants and spec.strategy.constants == "measured":
            scenario.with_target(problem)  # says at once when no target is given
        seed, shape = scenario.training_seed, scenario.input_shape
        network = _network(scenario, seed)
        size, clients = min(2, training.batch_size), problem.system.num_clients
        minimised = objective(scenario, given)
        _check_held_out(scenario)
        elsewhere = section.name == "own" and backend.data_elsewhere
        if elsewhere:
            layers, dataset = _brought(scenario, section, network, shape, brought, minimised)
            here = np.arange(len(dataset.train[1]))
            parts: Sequence[np.ndarray] = [
                here if brought is not None and n == brought.client else here[:0] for n in range(clients)
            ]
        else:
            dataset, parts = data.load_client_data(scenario, data_folder)
        parts, held = held_out(parts, section.held_out, seed) if section.held_out else (parts, None)
        targets = dataset.train[1].numpy()
        shared = isinstance(parts, OwnDraws)  # everybody has as many, and a list of what they are would be long
        if not elsewhere:
            problem = _with_samples(problem, parts[:1] if shared else parts)
        sampler = data.Sampler(parts, training.batch_size, seed, section.augment)
        feed = data.Feed(dataset, sampler, device)
        if elsewhere:
            inputs, expected = (tensor.unflatten(0, (2, size)) for tensor in feed.blank(2 * size))
        else:
            layers = list(models.chain(network, feed.samples(torch.arange(2, device=device))[0].cpu()))
            inputs, expected = feed.samples((torch.arange(2 * size, device=device) % len(targets)).view(2, size))
        outputs = _outputs(layers, inputs.flatten(0, 1).cpu())
        classes = are_classes(outputs, expected.flatten(0, 1).cpu())
        if not isinstance(outputs, torch.Tensor):
            _check_top(scenario, len(layers))
        if classes and not elsewhere:
            _check_classes(layers, dataset)
        metrics = minimised.counted(spec.stopping, classes=classes)
        if len(layers) != problem.num_layers:
            raise ScenarioError(
                f"the model has {len(layers)} layers, its profile {problem.num_layers}; measure it again"
            )
        check_by_client(layers, inputs, expected, device, together=backend.together, loss=minimised.loss)
        made = backend(
            layers,
            [hosts.tolist() for hosts in problem.system.hosts],
            list(range(1, problem.system.num_tiers)),
            _optimizer(problem, scenario),
            data=feed,
            loss=minimised.loss,
            metrics=metrics,
            weights=None if training.weighting != "samples" or shared else [len(part) for part in parts],
            averaging=RULES[training.averaging](**training.averaging_settings),
            codes=[tier.codes for tier in problem.system.tiers],
            micro_batches=problem.micro_batches,
            chunks=problem.chunks,
            device=device,
            precision=execution.precision,
            seed=seed,
            cohort=() if participation is not None and participation.draws else None,
            **among,
        )
        if training.chunks > 1:
            check_in_chunks(layers, inputs, expected, device, loss=minimised.loss)
    except HsflError as error:
        text = str(error)
        if text.startswith(scenario.source):
            raise
        raise ScenarioError(f"{scenario.source}: {text}") from error
    if isinstance(strategy, Named) and not (strategy.replans or strategy.needs_constants):
        proposed(strategy, problem, None, 0)  # what is given is found not to fit before anything is trained
    task = Task(
        problem=problem,
        strategy=strategy,
        conditions=Conditions(scenario).at,
        with_target=scenario.with_target,
        measure_constants=spec.strategy.constants == "measured",
        probe_batches=scenario.probe_batches,
        replan_every=spec.strategy.replan_every,
        participation=participation,
    )
    labels = None if elsewhere or shared else labels_of(data.ClientData(dataset, parts))
    own_samples = None if held is None else [torch.from_numpy(part).to(device) for part in held]
    tests = {"evaluates": bool(len(dataset.test[0])), "evaluates_clients": execution.evaluate_clients}
    return Prepared(task, made, labels, device, minimised, own_samples, **tests)


def _with_samples(problem: Problem, parts: Sequence[np.ndarray]) -> Problem:
    """The problem with how many samples clients have; a client without any sees none of them again."""
    counts = [len(part) for part in parts if len(part)]
    samples = len(parts) / sum(1 / count for count in counts) if counts else None
    return replace(problem, constants=replace(problem.constants, samples_per_client=samples))


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
            return models.load_factory(model.factory, scenario.folder, scenario.objects.get("model"))
        assert model.name is not None
        shape = tuple(model.input_shape or models.input_shape(model.name))
        return models.build(model.name, shape, model.classes or CLASSES)


def _brought(
    scenario: Scenario,
    section: DataSection,
    network: nn.Module,
    shape: tuple[int, ...],
    brought: Brought | None,
    minimised: Objective,
) -> tuple[list[nn.Module], data.Dataset]:
    """The layers, and the data that are here, where nobody has all: what they must be like follows from the model."""
    stopping = scenario.spec.stopping
    if scenario.spec.training.weighting == "samples":
        raise ScenarioError(
            'training.weighting = "samples": with data.name = "own" nobody knows how many samples others have; remove '
            "it"
        )
    if section.partition != "iid" or section.assignments is not None:
        raise ScenarioError('data.partition: with data.name = "own" every device has its own data; remove it')
    if section.test is None and (stopping.until_accuracy is not None or stopping.until_converged):
        field = "until_accuracy" if stopping.until_accuracy is not None else "until_converged"
        raise ScenarioError(
            f"stopping.{field}: there is nothing to evaluate on; give data.test, or stopping.until_loss"
        )
    blank = torch.zeros((2, *shape), dtype=torch.int64 if section.inputs == "int64" else torch.float32)
    layers = list(models.chain(network, blank))
    outputs = _outputs(layers, blank)
    if minimised.name not in LOSSES or not isinstance(outputs, torch.Tensor):
        raise ScenarioError(
            f'training.loss = {minimised.name}: with data.name = "own" it must be one of {", ".join(LOSSES)}, of one '
            "tensor: what targets are like follows from it"
        )
    like = targets_of(outputs) if minimised.loss is cross_entropy else (tuple(outputs.shape[1:]), None)
    samples = data.Samples(section.inputs, shape, *like)
    train = test = None
    if brought is not None and brought.where is not None:
        field = f"--data {brought.where}"
        train = samples.checked(data.load_part(brought.where, None, None, field), "training", field)
    elif brought is None and section.test is not None:
        field, folder = f"data.test = {section.test}", scenario.folder
        test = samples.checked(data.load_part(section.test, folder, folder, field), "test", field)
    return layers, samples.dataset(train, test)


def _outputs(layers: list[nn.Module], inputs: torch.Tensor) -> Any:
    """What a copy of the model gives for some samples."""
    outputs: Any = inputs
    with torch.no_grad():
        for number, layer in enumerate(copy.deepcopy(layers)):
            outputs = run_layer(number, layer.eval(), outputs, several=number == len(layers) - 1)
    return outputs


def _check_held_out(scenario: Scenario) -> None:
    section = scenario.spec.data
    assert section is not None
    if section.held_out and section.samples_per_client is not None:
        raise ScenarioError(
            "data.held_out: with data.samples_per_client others train on what one client holds out; remove one of them"
        )
    for field in ("held_out", "validation") if section.name == "own" else ():
        if getattr(section, field):
            raise ScenarioError(
                f'data.{field}: with data.name = "own" nobody evaluates on what devices have; remove it'
            )
    if scenario.spec.execution.evaluate_clients and not section.held_out:
        raise ScenarioError(
            "execution.evaluate_clients = true: there is nothing to evaluate them on; give data.held_out, such as 0.1"
        )


def _check_top(scenario: Scenario, layers: int) -> None:
    """Several tensors cross no cut: the last layer, which gives them, has to be in the top tier."""
    given = scenario.spec.strategy
    if scenario.system.returns:
        return  # the tail has one
    fields = {
        'name = "FedAvg"': given.name.lower() == "fedavg",
        "allow_empty_tiers": given.allow_empty_tiers,
        f"cuts = {given.cuts}": given.cuts and given.cuts[-1] >= layers,
    }
    for field in (field for field, leaves_none in fields.items() if leaves_none):
        raise ScenarioError(
            f"strategy.{field}: the model gives several tensors, which cross no cut, so that its last layer has to be "
            f"in the top tier; cut after at most {layers - 1} of {layers} layers"
        )


def _check_classes(layers: list[nn.Module], dataset: data.Dataset) -> None:
    classes = [p.shape[0] for p in layers[-1].parameters() if p.ndim > 1][-1:]
    if classes and dataset.num_classes > classes[0] and dataset.train[1].ndim == 1:
        raise ScenarioError(
            f"data: {dataset.num_classes} classes, but the model tells {classes[0]} apart; give it more outputs"
        )


def _optimizer(problem: Problem, scenario: Scenario) -> dict[str, Any]:
    training = scenario.spec.training
    settings: dict[str, Any] = {"lr": problem.learning_rate, "weight_decay": training.weight_decay}
    settings |= {"clip": training.clip, "schedule": step_schedule(scenario)}
    if training.optimizer == "momentum":
        return settings | {"name": "sgd", "momentum": problem.momentum}
    return settings | {"name": training.optimizer}
