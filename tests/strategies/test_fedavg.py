"""Federated averaging as the special case in which nothing is split: the numbers, the clock, and what is sent."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hsfl
from hsfl.data import load_client_data
from hsfl.engine.clock import SimulatedClock
from hsfl.errors import ScenarioError
from hsfl.models import chain
from hsfl.problem.codes import tier_codes
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from hsfl.strategies import make_strategy
from hsfl.theory.coding import coding_noise, of_all_codes
from hsfl.theory.latency import round_parts
from tests.engine.test_backends import OPTIMIZERS, assert_same_state, batch, layers
from tests.runs.conftest import TINY, write_tiny
from tests.scenario.scenarios import changed
from tests.theory.test_by_hand import by_hand

STEPS, CLIENTS, RATE = 3, 4, 0.1
FEDAVG = {
    "strategy": {"name": "FedAvg", "local_steps": STEPS},
    "training": {"batch_size": 30, "learning_rate": RATE},
    "stopping.rounds": 2 * STEPS,
    "dynamics": {},
    "data.partition": "iid",
}


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def samples() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(150, 8, generator=generator)
    targets = (inputs @ torch.randn(8, 3, generator=generator)).argmax(-1)
    return inputs[:120], targets[:120], inputs[120:], targets[120:]


def federated(parts: list[np.ndarray]) -> nn.Module:
    """Ten lines of FedAvg (McMahan et al., 2017): every client's whole data in every one of its local steps."""
    world, (inputs, targets, *_) = model(), samples()
    for _ in range(2):
        locals_ = [copy.deepcopy(world) for _ in parts]
        for local, part in zip(locals_, parts, strict=True):
            sgd = torch.optim.SGD(local.parameters(), lr=RATE)
            for _ in range(STEPS):
                sgd.zero_grad()
                nn.functional.cross_entropy(local(inputs[part]), targets[part]).backward()
                sgd.step()
        states = [local.state_dict() for local in locals_]
        world.load_state_dict({key: torch.stack([state[key] for state in states]).mean(0) for key in states[0]})
    return world


@pytest.mark.parametrize(
    ("backend", "codes"), [("reference", {}), ("stacked", {f"tiers.{m}.code": {"up": "int4"} for m in (0, 1)})]
)
def test_a_run_is_fedavg_number_for_number_and_by_its_clock(backend: str, codes: dict[str, Any], tmp_path) -> None:
    """H rounds take what the slowest device computes, and an average what moving the whole model takes, up and down.

    Links between tiers, coded or not, carry nothing and change nothing.
    """
    given = changed(FEDAVG | {"execution.backend": backend} | codes, TINY)
    scenario = hsfl.load_scenario(given, model=model(), data=samples())
    run = hsfl.train(scenario, out=tmp_path / "run")
    _, parts = load_client_data(scenario, None)
    expected = nn.Sequential(*chain(federated(list(parts)), samples()[0][:2])).state_dict()
    for key, value in load_file(run.folder / "model.safetensors").items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
    assert [(plan.cuts, plan.intervals) for plan in run.plans] == [([3, 3], [STEPS, 1, 1])]
    profile = scenario.training_problem.profile
    round_s = 30 * float((profile.forward_flops + profile.backward_flops).sum()) / 20e3
    average_s = float(profile.parameter_bits.sum()) * 2 / 500e3
    times = [round_s * t + average_s * (t // STEPS) for t in range(2 * STEPS + 1)]
    assert [line.time_s for line in run.metrics] == pytest.approx(times)
    sent = {link: count for link, count in run.metrics[-1].bytes.items() if count}
    whole = 2 * CLIENTS * float(profile.parameter_bits.sum()) / 8
    assert sent == {"device.fed_up": whole, "device.fed_down": whole}


def coded(problem: Problem, name: str) -> Problem:
    """The same problem with a code on every link between tiers, and the noise of codes."""
    *below, top = problem.system.tiers
    codes = tier_codes({"up": name, "down": name}, "code", top=False, entities=2)
    system = System((*(replace(tier, codes=codes) for tier in below), top))
    noise = of_all_codes(np.ones((2, problem.num_layers)))
    return replace(problem, system=system, constants=replace(problem.constants, coding_noise=noise))


@pytest.mark.parametrize("name", ["fp32", "int4"])
@pytest.mark.parametrize(
    ("cuts", "crossed"), [((1, 2), (1, 1)), ((2, 2), (1, 1)), ((2, 3), (1, 0)), ((3, 3), (0, 0)), ((1, 3), (1, 0))]
)
def test_nothing_crosses_a_cut_above_which_no_layer_lies(name: str, cuts: tuple, crossed: tuple) -> None:
    """In time, bits and noise; a tier that relays to one with layers still receives and sends."""
    problem = coded(by_hand(), name)
    parts = round_parts(problem, cuts)
    for seconds in (parts.uplink_s, parts.downlink_s):
        assert [bool(s.any()) for s in seconds.T] == [bool(c) for c in crossed]
    clock = SimulatedClock(problem)
    clock.split(cuts)
    for tier, some in zip(("device", "edge"), crossed, strict=True):
        assert bool(clock.bits[f"{tier}.up"]) == bool(clock.bits[f"{tier}.down"]) == bool(some)
    assert bool(coding_noise(problem, cuts)) == (name == "int4" and any(crossed))


@pytest.mark.parametrize("kind", ["reference", "stacked"])
def test_codes_leave_what_has_no_layer_above_alone(kind: str) -> None:
    """The last layer on the edge: the link above it changes nothing, the one below does; moved up, both do."""
    hosts = [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    rng = np.random.default_rng(0)
    rounds = [batch(rng, 3) for _ in range(4)]

    def trained(codes: list[dict[str, str] | None], move: bool) -> hsfl.engine.Backend:
        made = hsfl.backend(kind, layers(), hosts, (2, 5), OPTIMIZERS["sgd"], codes=codes, dtype=torch.float64)
        for t, (inputs, targets) in enumerate(rounds):
            if move and t == 2:
                made.move((2, 4))
            made.step(inputs, targets)
        return made

    int4 = {"up": "int4", "down": "int4"}
    for move in (False, True):
        plain, above, below = (trained(codes, move) for codes in ([None] * 3, [None, int4, None], [int4, None, None]))
        if move:
            with pytest.raises(AssertionError):
                assert_same_state(plain, above)
        else:
            assert_same_state(plain, above)
        with pytest.raises(AssertionError):
            assert_same_state(plain, below)


def test_planning_with_empty_tiers_knows_that_nothing_is_sent() -> None:
    """Links that would take hours per round, and devices that compute as fast as the rest: all stays on the devices."""
    slow = {f"tiers.{tier}.{link}": "1 kbps" for tier in ("device", "edge") for link in ("uplink", "downlink")}
    slow |= {f"tiers.{tier}.compute": "1 TFLOPS" for tier in ("device", "edge", "cloud")}
    scenario = hsfl.load_scenario("paper", slow | {"tiers.*.memory": "1 TB"})
    for method in ("exact", "bcd"):
        planned = hsfl.plan(scenario, method, allow_empty_tiers=True)
        assert planned.cuts == (16, 16) and planned.evaluation.parts.uplink_s.sum() == 0


def test_a_model_with_several_outputs_cannot_be_federated_so(tmp_path) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    given = changed(FEDAVG, TINY)
    network = nn.Sequential(*model(), Two())
    scenario = hsfl.load_scenario(given, model=network, data=samples())
    with pytest.raises(ScenarioError, match=r'strategy.name = "FedAvg": the model gives several tensors'):
        hsfl.train(scenario, loss=lambda outputs, targets: outputs[0].sum(-1), out=tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"local_steps": 5}, 'strategy.local_steps = 5: only name = "FedAvg" .--strategy FedAvg. has local steps'),
        ({"name": "FedAvg", "intervals": [5, 1, 1]}, "chooses its own intervals; give local_steps instead"),
        ({"name": "FedAvg", "cuts": [3, 8]}, "strategy.cuts: name = 'FedAvg' chooses its own cuts; remove them"),
    ],
)
def test_local_steps_belong_to_fedavg_and_nothing_else_does(given: dict[str, Any], message: str) -> None:
    scenario = hsfl.load_scenario("paper", {f"strategy.{key}": value for key, value in given.items()})
    with pytest.raises(ScenarioError, match=message):
        make_strategy(scenario)


def test_the_command_has_an_option(command, tmp_path) -> None:
    file = write_tiny(tmp_path, {"stopping.rounds": 2})
    done = command("train", file, "--strategy", "fedavg", "--local-steps", 2, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    assert hsfl.Run.load(tmp_path / "run").plans[0].intervals == [2, 1, 1]


def test_labels_stay_on_the_devices_anyway() -> None:
    scenario = hsfl.load_scenario("mnist-mini", {"strategy.name": "FedAvg", "training.labels": "devices"})
    with pytest.raises(ScenarioError, match=r'training\.labels = "devices": .*; remove labels'):
        make_strategy(scenario)
