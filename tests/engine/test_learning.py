"""Losses of one's own, several outputs, clipping and schedules: against torch alone, and the same on both backends."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

import hsfl
from hsfl.engine.losses import LOSSES, METRICS
from hsfl.engine.schedule import Average
from hsfl.engine.step_schedule import cosine, steps, warmed_up
from hsfl.errors import HsflError
from hsfl.problem.plan import Plan
from hsfl.scenario.training_sections import TrainingSection
from tests.engine.task import Given, algorithm
from tests.engine.test_backends import OPTIMIZERS, RandomTree, assert_same_state, batch, layers

KINDS = ("reference", "stacked")
HOSTS = [[0, 1, 2, 3], [0, 0, 1, 1], [0] * 4]


def changing(round_: int) -> float:
    """Other steps within every interval."""
    return (1.0, 0.3, 0.7)[round_ % 3] / (1 + round_ / 20)


class Heads(nn.Module):
    """Two answers, one of them used by nobody's loss."""

    def __init__(self) -> None:
        super().__init__()
        self.label, self.size = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        return {"label": self.label(x), "rest": (self.size(x), x.argmax(-1))}


def numbers(rng: np.random.Generator, clients: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(rng.normal(size=(clients, 5, 4))), torch.from_numpy(rng.normal(size=(clients, 5, width)))


def regressor(heads: bool = False) -> list[nn.Module]:
    torch.manual_seed(3)
    found = [
        nn.Linear(4, 8),
        nn.Sequential(nn.Tanh(), nn.Linear(8, 6)),
        nn.Tanh(),
        Heads() if heads else nn.Linear(6, 2),
    ]
    return [layer.double() for layer in found]


def both_heads(outputs, targets: torch.Tensor) -> torch.Tensor:
    size, highest = outputs["rest"]
    assert not highest.is_floating_point()
    label = nn.functional.cross_entropy(outputs["label"], (targets[..., 0] > 0).long(), reduction="none")
    return label + nn.functional.mse_loss(size, targets, reduction="none").mean(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["mse", "l1", "bce", "heads"])
def test_all_intervals_1_is_centralised_training(kind: str, loss: str) -> None:
    """Whatever the loss: numbers as targets, and a model that gives several tensors."""
    found = regressor(heads=loss == "heads")
    chosen = both_heads if loss == "heads" else LOSSES[loss]
    backend = hsfl.backend(kind, found, HOSTS, (1, 2), OPTIMIZERS["momentum"], loss=chosen, dtype=torch.float64)
    model = nn.Sequential(*copy.deepcopy(found))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    rng = np.random.default_rng(0)
    by_torch = {"mse": nn.MSELoss(), "l1": nn.L1Loss(), "bce": nn.BCEWithLogitsLoss()}
    for _ in range(4):
        inputs, targets = numbers(rng, 4, 2)
        targets = targets.sigmoid() if loss == "bce" else targets
        losses = backend.step(inputs, targets)
        for tier in range(3):
            backend.average(tier)
        optimizer.zero_grad()
        outputs, flat = model(inputs.flatten(0, 1)), targets.flatten(0, 1)
        expected = both_heads(outputs, flat).mean() if loss == "heads" else by_torch[loss](outputs, flat)
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(losses.mean(), expected.detach(), rtol=0, atol=1e-12)
    for key, value in backend.client_state(3).items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-10)
    flat = (inputs.flatten(0, 1), targets.flatten(0, 1))
    assert set(backend.evaluate(flat)) == {"loss"}  # there is no accuracy of numbers


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_stacked_equals_reference(optimizer: str) -> None:
    """Clipped, at changing steps, on a random tree whose cuts move; with a metric of one's own."""
    tree = RandomTree(sorted(OPTIMIZERS).index(optimizer))
    rule = OPTIMIZERS[optimizer] | {"clip": 0.3, "schedule": changing}
    averaging = "corrected" if rule["name"] == "sgd" else "plain"
    options = {
        "dtype": torch.float64,
        "averaging": averaging,
        "metrics": {"margin": lambda o, t: o.amax(-1) - o.mean(-1)},
    }
    cuts = tree.cuts()
    both = [hsfl.backend(kind, layers("batch"), tree.hosts, cuts, rule, **options) for kind in KINDS]
    for _ in tree.train_alike(both, rounds=8, moves=(3, 5)):
        assert_same_state(*both)
    data = tuple(tensor.flatten(0, 1) for tensor in batch(np.random.default_rng(5), 3))
    ours, theirs = (backend.evaluate(data) for backend in both)
    assert ours == pytest.approx(theirs, abs=1e-9) and set(ours) == {"loss", "margin"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_machine_clips_its_own_layers(kind: str) -> None:
    """Two tiers: what torch's clip_grad_norm_ does to each client-side model, and to the server's mean gradient."""
    clip, clients, cut = 0.05, 3, 2
    rule = {"name": "sgd", "lr": 0.5, "clip": clip}
    backend = hsfl.backend(kind, layers(), [[0, 1, 2], [0, 0, 0]], (cut,), rule, dtype=torch.float64)
    fronts = [nn.Sequential(*layers()[:cut]) for _ in range(clients)]
    server = nn.Sequential(*layers()[cut:])
    rng = np.random.default_rng(2)
    shortened = []
    for _ in range(3):
        inputs, targets = batch(rng, clients)
        backend.step(inputs, targets)
        server.zero_grad()
        for n, front in enumerate(fronts):
            front.zero_grad()
            (nn.functional.cross_entropy(server(front(inputs[n])), targets[n]) / clients).backward()
            for parameter in front.parameters():
                parameter.grad *= clients
        for module in (server, *fronts):
            shortened.append(float(nn.utils.clip_grad_norm_(module.parameters(), clip)) > clip)
            torch.optim.SGD(module.parameters(), lr=0.5).step()
    assert any(shortened)
    for n in range(clients):
        whole = nn.Sequential(*fronts[n], *server).state_dict()
        for key, value in backend.client_state(n).items():
            torch.testing.assert_close(value, whole[key], rtol=0, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.integers(0, 20), st.sets(st.integers(1, 40), min_size=1, max_size=4))
def test_schedules_are_torchs(horizon: int, warmup: int, at: set[int]) -> None:
    """As torch's schedulers give them one after the other; from the horizon on nothing changes, and never to 0."""
    warmup = min(warmup, horizon - 1)
    parameter = nn.Parameter(torch.zeros(1))
    decline = torch.optim.lr_scheduler.CosineAnnealingLR
    pairs = [
        (cosine(horizon, warmup), lambda sgd: decline(sgd, horizon - warmup), warmup, horizon),
        (steps(sorted(at), 0.1), lambda sgd: torch.optim.lr_scheduler.MultiStepLR(sgd, sorted(at), 0.1), 0, 50),
    ]
    for ours, make, first, last in pairs:
        sgd = torch.optim.SGD([parameter], lr=1.0)
        theirs = make(sgd)
        for round_ in range(first, last):
            assert ours(round_) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
            sgd.step()
            theirs.step()
    falling = cosine(horizon, warmup)
    assert falling(10 * horizon) == falling(horizon) == falling(horizon - 1) > 0
    if warmup:
        rising = [warmed_up(falling, warmup)(round_) for round_ in range(warmup)]
        assert rising == pytest.approx([(round_ + 1) / warmup for round_ in range(warmup)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_a_round_takes_its_own_step(kind: str, optimizer: str, tmp_path: Path) -> None:
    """As torch's optimiser does whose learning rate is set before every step; and so after a file."""
    rule = OPTIMIZERS[optimizer] | {"schedule": changing}
    backend = hsfl.backend(kind, layers(), [[0], [0]], (2,), rule, dtype=torch.float64)
    model = nn.Sequential(*layers())
    theirs = {"momentum": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer](
        model.parameters(), **{k: v for k, v in OPTIMIZERS[optimizer].items() if k != "name"}
    )
    rng = np.random.default_rng(1)
    for round_ in range(6):
        if round_ == 3:
            backend.save(tmp_path / "half")
            backend = hsfl.backend(kind, layers(), [[0], [0]], (2,), rule, dtype=torch.float64)
            backend.load(tmp_path / "half")
        inputs, targets = batch(rng, 1)
        backend.step(inputs, targets)
        theirs.param_groups[0]["lr"] = rule["lr"] * changing(round_)
        theirs.zero_grad()
        nn.functional.cross_entropy(model(inputs[0]), targets[0]).backward()
        theirs.step()
    for key, value in backend.global_state().items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-10)


class Slope(nn.Module):
    """A weight whose loss is a straight line: a client's gradient is its own constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_variates_are_right_when_the_step_changes(kind: str, momentum: float) -> None:
    """With constant gradients two intervals tell all: the variate is how far a client's is from the mean one."""
    rng = np.random.default_rng(0)
    slopes = torch.from_numpy(rng.normal(size=(3, 1, 3)))
    rule = {"name": "sgd", "lr": 0.1, "momentum": momentum, "schedule": changing}
    backend = hsfl.backend(
        kind,
        [Slope(), nn.Identity()],
        [[0, 1, 2], [0, 0, 0]],
        (1,),
        rule,
        loss=lambda outputs, targets: outputs.sum(-1),
        averaging="corrected",
        dtype=torch.float64,
    )
    for rounds in (3, 4):
        for _ in range(rounds):
            backend.step(slopes, torch.zeros(3, 1))
        backend.average(0)
    expected = slopes[:, 0] - slopes[:, 0].mean(0)
    for client in range(3):
        found = backend._held(0, client)[1]["variate.0.weight"]
        torch.testing.assert_close(found, expected[client], rtol=0, atol=1e-12)
    for _ in range(4):
        backend.step(slopes, torch.zeros(3, 1))
    assert float(backend.drift(0)) < 1e-20  # all go the same way now


def test_plans_and_predictions_take_the_step_of_the_moment() -> None:
    plan = Plan((1, 2), (4, 2, 1))
    strategy = Given([plan])
    made = algorithm(strategy, replan_every=8)
    made.backend.optimizer = replace(made.backend.optimizer, schedule=changing)
    lines = [line for line in made.advance(17) if hasattr(line, "averaged")]
    assert [round_ for round_, _ in strategy.asked] == [0, 8, 16]
    for round_, problem in strategy.asked:
        assert problem.learning_rate == pytest.approx(0.1 * changing(round_))
    assert [line.learning_rate for line in lines] == pytest.approx([0.1 * changing(t) for t in range(17)])
    # The same constants at another step: the prediction grows with the square of the mean one since the average.
    made.estimate.observe = lambda *_, **__: None
    averages = [Average(0, rounds, moved=False) for rounds in (4, 2)]
    twice = [made._drift(average, 12, 1.0).refined for average in averages]
    made.backend.optimizer = replace(made.backend.optimizer, schedule=lambda round_: 1.0)
    once = [made._drift(average, 12, 1.0).refined for average in averages]
    means = [np.mean([changing(t) for t in range(12 - k, 12)]) for k in (4, 2)]
    assert [t / o for t, o in zip(twice, once, strict=True)] == pytest.approx([m**2 for m in means])


def test_what_is_named_is_there() -> None:
    """The names that scenarios know are those that the engine has."""
    with pytest.raises(ValidationError, match=f"it must be one of {', '.join(LOSSES)}, or"):
        TrainingSection(batch_size=1, learning_rate=0.1, loss="none")
    with pytest.raises(ValidationError, match=f"it must be one of {', '.join(METRICS)}, or"):
        TrainingSection(batch_size=1, learning_rate=0.1, metrics=["none"])


@pytest.mark.parametrize(
    ("settings_", "said"),
    [
        ({"clip": 0.0}, "optimizer: clip = 0.0 must be positive and finite"),
        ({"schedule": "cosine"}, "optimizer: schedule = 'cosine' must be a function of the round"),
        ({"schedule": lambda round_: 0.0}, "gives 0.0 for round 0, counted from 0; it must give a positive"),
        ({"schedule": lambda round_: "x"}, "gives 'x' for round 0"),
        ({"schedule": lambda round_: 1 / round_}, "the schedule of the learning rate raised ZeroDivisionError"),
    ],
)
def test_settings_that_cannot_be(settings_: dict, said: str) -> None:
    rule, given_ = OPTIMIZERS["sgd"] | settings_, batch(np.random.default_rng(0), 4)
    with pytest.raises(HsflError) as caught:
        hsfl.backend("stacked", layers(), HOSTS, (1, 2), rule, dtype=torch.float64).step(*given_)
    assert said in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_that_do_not_fit_are_said(kind: str) -> None:
    def broken(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise KeyError("target")

    inputs, targets = numbers(np.random.default_rng(0), 4, 1)
    for loss, said in ((LOSSES["mse"], "mse needs a target for every output"), (broken, "the loss fails on targets")):
        backend = hsfl.backend(kind, regressor(), HOSTS, (1, 2), OPTIMIZERS["sgd"], loss=loss, dtype=torch.float64)
        with pytest.raises(HsflError, match=said):
            backend.step(inputs, targets)
