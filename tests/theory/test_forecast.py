"""Forecasts of the loss: on curves that follow a law, on real ones, and where nothing can be said."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.theory.forecast import loss_law, recent_losses

#: The losses of VGG-16 in every round: 2,000 on CIFAR-10 and 800 on MNIST, on seeds that no result uses.
REAL = dict(np.load(Path(__file__).parent / "losses.npz"))


def curve(plateau: int, halving: float, rounds: int, power: float = 1.0, noise: float = 0.0, seed: int = 0):
    """Flat for a while, then falling, to a half in so many rounds and on by a power of them."""
    since = np.maximum(np.arange(1, rounds + 1) - plateau, 0) / halving
    exact = 2.3 * (1 + since * (2 ** (1 / power) - 1)) ** -power
    return exact * np.random.default_rng(seed).lognormal(-(noise**2) / 2, noise, rounds)


def rounds_to(losses, target: float) -> int:
    """When the loss of the moment is that low."""
    return int(np.flatnonzero(recent_losses(losses) <= target)[0]) + 1


@given(
    plateau=st.integers(0, 100),
    halving=st.floats(20, 100),
    noise=st.floats(0, 0.15),
    later=st.floats(2, 5),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_a_loss_that_falls_like_one_over_the_rounds_is_forecast(plateau, halving, noise, later, seed):
    now = plateau + 200
    losses = curve(plateau, halving, int(later * now), noise=noise, seed=seed)
    target = float(curve(plateau, halving, int(later * now))[-1])
    law = loss_law(losses[:now])
    assert law is not None
    said, happened = law.rounds_to(target), len(losses) - now
    assert happened / 1.5 < said.rounds < 1.5 * happened
    assert said.low < said.rounds < said.high


@pytest.mark.parametrize("power", [0.8, 1.25])
def test_other_powers_are_not_far_off(power):
    losses = curve(30, 50, 1000, power=power)
    said = loss_law(losses[:250]).rounds_to(float(losses[-1]))
    assert 750 / 1.5 < said.rounds < 1.5 * 750


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_the_unit_of_the_loss_does_not_matter(scale, seed):
    losses = curve(20, 40, 200, noise=0.2, seed=seed)
    said, scaled = loss_law(losses).rounds_to(0.2), loss_law(scale * losses).rounds_to(0.2 * scale)
    assert [scaled.rounds, scaled.low, scaled.high] == pytest.approx([said.rounds, said.low, said.high])


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("reached", [0.8, 0.9, 1.0])
def test_half_of_a_real_run_is_enough(name, reached):
    losses = REAL[name].astype(float)
    now, target = len(losses) // 2, float(recent_losses(losses)[round(reached * len(losses)) - 1])
    said, happened = loss_law(losses[:now]).rounds_to(target), rounds_to(losses, target) - now
    assert happened / 1.5 < said.rounds < 1.5 * happened


@pytest.mark.parametrize("name", ["cifar10-iid-sync", "cifar10-shards-planned"])
@pytest.mark.parametrize("reached", [0.5, 0.75, 1.0])
def test_a_fifth_of_a_real_run_is_enough_on_cifar10(name, reached):
    losses = REAL[name].astype(float)
    target = float(recent_losses(losses)[round(reached * len(losses)) - 1])
    said, happened = loss_law(losses[:400]).rounds_to(target), rounds_to(losses, target) - 400
    assert happened / 1.5 < said.rounds < 1.5 * happened


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [2.3] * 5,
        [2.3] * 300,
        curve(300, 50, 300, noise=0.02),
        [*curve(20, 40, 200)[::-1]],
        [0.0] * 50,
        [*[2.3] * 20, *[0.0] * 30],
        [*curve(20, 40, 200), float("nan")],
    ],
    ids=["none", "few", "flat", "a plateau", "rising", "nothing left", "all at once", "diverged"],
)
def test_nothing_is_said_where_losses_show_no_law(losses):
    assert loss_law(losses) is None


def test_a_fifth_of_a_real_run_may_be_its_first_plateau():
    assert loss_law(REAL["mnist-shards-sync"][:160].astype(float)) is None


def test_what_is_too_far_away_is_not_said():
    law = loss_law(curve(20, 40, 200))
    near, far, never = (law.rounds_to(target) for target in (0.1, 0.022, 1e-6))
    assert near.low < near.rounds < near.high < inf
    assert far.low < inf and far.rounds == far.high == inf
    assert never.low == inf
    assert law.rounds_to(2.0).rounds == 0


def test_the_loss_of_the_moment_is_the_mean_of_the_last_tenth():
    losses = np.arange(100.0)
    recent = recent_losses(losses)
    assert recent[0] == 0 and recent[2] == 1 and recent[9] == 7  # the first ones, then at least five
    assert recent[99] == pytest.approx(np.mean(losses[90:]))
    assert len(recent_losses([])) == 0
