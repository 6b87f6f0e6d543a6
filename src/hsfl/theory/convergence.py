"""The convergence bound (Theorem 1, Corollary 1) with two models of how far a tier drifts between averages.

Both drift models are, for every tier, a quadratic in its interval whose coefficients are sums over the tier's layers:
the drift term of tier m is [I_m > 1] * (q_2 I_m^2 + q_1 I_m + q_0). That is all a planner needs to know of them.
A cohort that stays adds a quadratic of its own to that of the devices (`theory.sampling`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hsfl.problem.problem import Problem, cumulative, once
from hsfl.problem.profile import FloatArray
from hsfl.problem.topology import edges
from hsfl.theory.coding import coding_noise, unsent
from hsfl.theory.sampling import sampling_variance, within_cohort

#: How many times the loss, and what is left of the first one, the energy of drift may be before training stalls.
ENERGY = 4.2
#: By what part of itself random drift may raise the loss before training stalls, in the root mean square over rounds.
RISE = 0.1
#: The loss counts as so much of the first one at least: where models come to fit their samples it goes to 0, and what
#: they do on others does not depend on it any more.
LEFT = 0.15
#: How much of drift towards samples that are seen again counts, where all of it does of drift towards data that differ.
AGAIN = 0.25
#: Intervals beyond this are as good as this one to see how drift grows.
_FAR = 1000


def paper_drift(problem: Problem) -> FloatArray:
    """Lemma 1: 4 beta^2 gamma^2 I_m^2 sum_l G_l^2, as coefficients (3, M, L) of I^2, I and 1.

    The mean of several mini-batch gradients has a second moment of at most G^2, which stands for it.
    """
    M, L = problem.system.num_tiers, problem.num_layers
    moment_L = problem.constants.gradient_second_moment
    assert moment_L is not None
    coefficients = np.zeros((3, M, L))
    coefficients[0] = 4 * (problem.constants.smoothness * problem.step) ** 2 * moment_L
    return coefficients


def refined_drift(problem: Problem) -> FloatArray:
    """Random drift grows with k rounds since the average, systematic drift with k^2; averaged over k = 0..I-1:

    beta^2 gamma^2 [a (I-1)/2 + b (I-1)(2I-1)/6] with a = (J_m - 1)/(N k) sum_l sigma_l^2 and b = sum_l zeta_{m,l}^2;
    within a cohort, where only some clients take part (`theory.sampling`).
    A model under bounded dissimilarity, not the paper's theorem; it tells IID from non-IID data, which G^2 cannot.
    """
    return (problem.constants.smoothness * problem.step) ** 2 * over_intervals(problem, *_rates(problem))


def energy_drift(problem: Problem) -> FloatArray:
    """The refined drift as it harms: in units of the squared gradient norm, weighed by `loss_target`.

    What enters the mean step are the differences of gradients at the machines' own weights, averaged. Random drifts are
    independent, so that they cancel up to 1/J_m; systematic ones do not. Steps are taken to be as long as the
    curvature allows, beta = 1/gamma, as training with a useful step soon finds them. And random drift raises the loss
    at every machine, by its curvature, and what is trained is the loss raised like that: as much as training has seen.
    Samples that a client sees again pull it the same way each time, but clients of the same data in different ones.
    """
    a_ML, b_ML = _rates(problem)
    if (first := problem.constants.first_gradients) is not None:
        first_a_ML, first_b_ML = _uncorrected(problem, first[0] / problem.micro_batches, first[1:])
        a_ML, b_ML = np.maximum(a_ML, first_a_ML), np.maximum(b_ML, first_b_ML)
    raised = ENERGY / 3 * _left(problem) * problem.constants.rise**2 / (RISE**2 * _loss(problem))
    cancelled = 1 / problem.system.working[:, None]
    return over_intervals(problem, a_ML * (cancelled + raised), b_ML, a_ML * np.maximum(AGAIN, cancelled))


def _rates(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """What every layer adds to a_m and b_m in every tier: (M, L) each, as far as training has seen it."""
    constants = problem.constants
    assert constants.gradient_dissimilarity is not None
    a_ML, b_ML = _uncorrected(problem, problem.gradient_variance, constants.gradient_dissimilarity)
    seen_M = 1.0 if constants.drift_correction is None else constants.drift_correction[:, None]
    return seen_M * a_ML, seen_M * b_ML


def _uncorrected(problem: Problem, sigma2_L: FloatArray, zeta2_ML: FloatArray) -> tuple[FloatArray, FloatArray]:
    system = problem.system
    return (system.working[:, None] - 1) / system.participants * sigma2_L, within_cohort(system, zeta2_ML)


def _growth(problem: Problem, k: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """How random and systematic drift grow with k rounds since the average, k and k^2 but for momentum; and how much
    random drift grows beyond that because clients see samples again.

    Momentum mu makes gamma of the step only after about 1/(1 - mu) rounds. Where machines keep their own, noise is
    remembered from round to round; where an average gives them a common one, they drift slowly at first.

    A client has seen all of its samples after E rounds, and then sees them again in another order: the noise of two
    rounds that are d apart has a part min(d/E, 1)/E in common, so that 2 sum_{d<k} (k - d) min(d/E, 1)/E is added. In
    the end that is the drift towards the mean gradient of so many samples, which differs although all are drawn alike.
    Probes, which see every sample once, do not show it.

    Both are counted where drift is weighed against the loss, not in the model of the published experiments.
    """
    if not problem.constants.by_loss:
        return k, k**2, np.zeros_like(k)
    mu = problem.momentum
    recent = mu * (1 - mu**k) / (1 - mu)
    if problem.averaging == "corrected" or problem.average_optimizer:
        random, systematic = k - 2 * recent + mu**2 * (1 - mu ** (2 * k)) / (1 - mu**2), (k - recent) ** 2
    else:
        random, systematic = k - 2 * recent / (1 + mu), k**2
    if (samples := problem.constants.samples_per_client) is None:
        return random, systematic, np.zeros_like(k)
    E = samples / (problem.batch_size * problem.micro_batches)
    again = np.where(k <= E, k**3 / (3 * E**2), k**2 / E - k + E / 3)
    return random, systematic, again * systematic / np.maximum(k, 1) ** 2


def over_intervals(
    problem: Problem, a_ML: FloatArray, b_ML: FloatArray, again_ML: FloatArray | float = 0.0
) -> FloatArray:
    """The mean of a, b and `again`, each as it grows, over k = 0..I-1, as coefficients of I^2, I and 1: (3, M, L).

    For k and k^2 that is a quadratic. Else it is the quadratic that is right at the intervals in force and at twice as
    many rounds, 0 at 1 and never below: from one plan to the next intervals change no more than that.
    """
    rates_ML = (a_ML, b_ML, np.broadcast_to(again_ML, a_ML.shape))
    in_force = problem.constants.intervals_in_force
    near_M = np.full(problem.system.num_tiers, 4) if in_force is None else np.clip(in_force, 2, _FAR).astype(int)
    total = np.zeros((3, *a_ML.shape))
    for m, near in enumerate(near_M):
        for rate_ML, grown in zip(rates_ML, _growth(problem, np.arange(2.0 * near)), strict=True):
            # The quadratic is (I - 1)(q1 + q2 (I - 1)); the factor on the right is known at both.
            here, there = grown[:near].mean() / (near - 1), grown.mean() / (2 * near - 1)
            q2 = min((there - here) / near, there / (2 * near - 2))
            q1 = there - q2 * (2 * near - 1)
            total[:, m] += np.multiply.outer((q2, q1 - 2 * q2, q2 - q1), rate_ML[m])
    return total


def drift_rates(problem: Problem, cuts: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """a_m and b_m of the refined model for one plan: (M,) each, 0 for a tier with one entity."""
    a_ML, b_ML = _rates(problem)
    return _per_tier(problem, cuts, a_ML), _per_tier(problem, cuts, b_ML)


def predicted_drift(problem: Problem, cuts: npt.ArrayLike, rounds: npt.ArrayLike) -> dict[str, FloatArray]:
    """How far the entities of every tier are apart so many rounds after an average, by each model that can tell: (M,).

    E|w_m^j - mean|^2 over the tier's layers: refined, gamma^2 (a k + b k^2), with what `_growth` makes of k and k^2;
    paper, 4 gamma^2 k^2 sum_l G_l^2.
    """
    constants, k, found = problem.constants, np.asarray(rounds, dtype=float), {}
    if constants.gradient_dissimilarity is not None:
        (a_M, b_M), (random, systematic, again) = drift_rates(problem, cuts), _growth(problem, k)
        found["refined"] = problem.step**2 * (a_M * (random + again) + b_M * systematic)
    if constants.gradient_second_moment is not None:
        found["paper"] = 4 * (problem.step * k) ** 2 * _per_tier(problem, cuts, constants.gradient_second_moment)
    return found


def energies(problem: Problem, cuts: npt.ArrayLike, rounds: int) -> FloatArray:
    """|w_j - w|^2 / 2 gamma so many rounds after an average, 0 to `rounds` - 1, by the refined model: (rounds, M)."""
    return predicted_drift(problem, cuts, np.arange(rounds)[:, None])["refined"] / (2 * problem.step)


def _per_tier(problem: Problem, cuts: npt.ArrayLike, per_layer: FloatArray) -> FloatArray:
    """Sums over the layers of every tier that has several entities: (M,), of (L,) or (M, L)."""
    M, at = problem.system.num_tiers, edges(cuts, problem.num_layers)
    sums, tier = np.broadcast_to(cumulative(per_layer), (M, problem.num_layers + 1)), np.arange(M)
    return np.where(problem.system.averaged, sums[tier, at[1:]] - sums[tier, at[:-1]], 0.0)


DRIFT_MODELS: dict[str, Callable[[Problem], FloatArray]] = {
    "paper": paper_drift,
    "refined": refined_drift,
    "energy": energy_drift,
}


def drift_coefficients(problem: Problem) -> FloatArray:
    """q_2, q_1, q_0 of every layer in every tier: (3, M, L), 0 where a tier has one entity at work (Insight 2)."""
    coefficients = DRIFT_MODELS[problem.constants.drift](problem)
    several = problem.system.averaged & (problem.system.participants > 1)
    return np.where(several[:, None], coefficients, 0.0)


def staying_cohort(problem: Problem) -> tuple[FloatArray, FloatArray]:
    """What a cohort adds to the drift of the devices when it stays for I_1 rounds, not one: two (3,) of I^2, I and 1.

    The first grows with the step: as noise that is the same for I_1 rounds, beta gamma v (I_1 - 1). The second with its
    square: all machines go where the cohort pulls, beta^2 gamma^2 v (I_1-1)(2 I_1-1)/6. v is that of all layers.
    """
    variance = sampling_variance(problem)
    by_step = 1.0 if problem.constants.by_loss else problem.constants.smoothness * problem.step
    pulled = np.zeros((problem.system.num_tiers, 1))
    pulled[0] = variance
    together = over_intervals(problem, np.zeros_like(pulled), pulled)[:, 0, 0]
    return by_step * variance * np.array((0.0, 1.0, -1.0)), by_step**2 * together


@once
def drift_sums(problem: Problem) -> FloatArray:
    """The same of the first l layers: (3, M, L+1)."""
    return cumulative(drift_coefficients(problem))


def drift(problem: Problem, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """The drift term of every tier: (..., M), with what its averages leave unsent and what a cohort that stays adds."""
    at, tier, intervals = edges(cuts, problem.num_layers), np.arange(problem.system.num_tiers), np.asarray(intervals)

    def of_tiers(sums: FloatArray) -> FloatArray:
        found: FloatArray = sums[:, tier, at[..., 1:]] - sums[:, tier, at[..., :-1]]
        return found

    apart = quadratic(of_tiers(drift_sums(problem)), intervals.astype(float))
    if problem.system.sampled:
        by_step, by_square = staying_cohort(problem)
        apart[..., 0] += quadratic(by_step + by_square, intervals[..., 0].astype(float))
    if problem.constants.coding_noise is None:
        return apart
    u2, u1 = of_tiers(cumulative(unsent(problem)))
    noise = np.array([tier.codes.average.average_noise for tier in problem.system.tiers])
    return np.asarray(apart + noise * (u2 * intervals + u1) * intervals)


def quadratic(coefficients: FloatArray, intervals: FloatArray, at_one: FloatArray | float = 0.0) -> FloatArray:
    """q_2 I^2 + q_1 I + q_0, the coefficients along the first axis; `at_one` for I = 1, where nothing drifts."""
    q2, q1, q0 = coefficients
    return np.where(intervals > 1, (q2 * intervals + q1) * intervals + q0, at_one)


@once
def noise_floor(problem: Problem) -> float:
    """beta gamma sum_l sigma_l^2 / (N k): what no number of rounds gets below; no part of `loss_target`.

    With cohorts beta gamma sum_l (sigma_l^2 / (K k) + v_l).
    """
    constants = problem.constants
    if constants.by_loss:
        return 0.0
    by_step = constants.smoothness * problem.step
    floor = float(by_step * problem.gradient_variance.sum() / problem.system.participants)
    return floor + by_step * sampling_variance(problem)


def gap_over_step(problem: Problem) -> float:
    """2 theta0 / gamma: how many rounds a plan needs, times the margin it leaves."""
    return 2 * problem.constants.initial_gap / problem.step


def target_after(problem: Problem, rounds: float, slack: float = 0.0) -> float:
    """epsilon as full synchronisation reaches it in so many rounds, raised by `slack` of itself."""
    return float((gap_over_step(problem) / rounds + noise_floor(problem)) * (1 + slack))


def loss_target(problem: Problem) -> float:
    """epsilon as the loss of the moment allows it, with the drift model "energy".

    A machine that is d from the average has moved as if to gain |d|^2 / (2 gamma) for itself. Training goes on as with
    full synchronisation while that is below the loss that is left to gain, and stalls where it is several times as
    much; late, when little is left of the first loss, less of it does harm. So the margin is `ENERGY` times the loss,
    times what is left of the first one, for the drift just before an average, which is 3 times the mean one.
    """
    return ENERGY / 3 * _left(problem) * 2 * _loss(problem) / problem.step


def _loss(problem: Problem) -> float:
    """The loss of the moment, as it counts."""
    return max(problem.constants.initial_gap, LEFT * (problem.constants.first_loss or 0.0))


def _left(problem: Problem) -> float:
    """What is left of the first loss, as it counts."""
    first = problem.constants.first_loss
    return 1.0 if first is None else min(_loss(problem) / first, 1.0)


def margin(problem: Problem, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """D(I, c) = epsilon - noise floor - coding noise - drift: what is left for the optimisation error; (...)."""
    noise = noise_floor(problem) + coding_noise(problem, cuts)
    total: FloatArray = problem.constants.target - noise - drift(problem, cuts, intervals).sum(-1)
    return total


def bound(problem: Problem, rounds: npt.ArrayLike, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """Theorem 1's right-hand side: the mean squared gradient norm after that many rounds; (...)."""
    optimisation = gap_over_step(problem) / np.asarray(rounds, dtype=float)
    noise = noise_floor(problem) + coding_noise(problem, cuts)
    total: FloatArray = optimisation + noise + drift(problem, cuts, intervals).sum(-1)
    return total


def rounds_needed(problem: Problem, cuts: npt.ArrayLike, intervals: npt.ArrayLike) -> FloatArray:
    """Corollary 1: R(I, c) before rounding up; infinite where drift keeps the plan from the target; (...)."""
    D = margin(problem, cuts, intervals)
    reached = D > 0
    return np.where(reached, gap_over_step(problem) / np.where(reached, D, 1.0), np.inf)


def whole_rounds(rounds: FloatArray) -> FloatArray:
    """The integer number of rounds; a relative 1e-12 is forgiven so that rounding errors cost no round."""
    return np.ceil(rounds * (1 - 1e-12))
