"""Problems to try planners on: random ones of every shape, and exhaustive search to know their optima."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hsfl.problem.codes import CODES, LINKS, LinkCodes, tier_codes
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Constants, Problem
from hsfl.problem.profile import LayerProfile
from hsfl.problem.system import System, Tier
from hsfl.theory.coding import of_all_codes
from hsfl.theory.convergence import drift_coefficients, margin, noise_floor, quadratic, rounds_needed, staying_cohort
from hsfl.theory.latency import aggregation_latency, averaged_bits, client_memory, round_parts, split_latency
from hsfl.theory.objective import objective_of


def random_problem(
    rng: np.random.Generator,
    *,
    num_tiers: int,
    num_layers: int,
    num_clients: int,
    drift: str = "paper",
    single_top: bool = True,
    memory: bool = False,
    longest_interval: int = 8,
    generosity: float = 1.0,
) -> Problem:
    """A ragged tree with random rates and a random model.

    Intervals beyond `longest_interval` miss the target; more `generosity` raises the target, for longer ones.
    """
    entities = [num_clients]
    for m in range(1, num_tiers):
        top = m == num_tiers - 1
        entities.append(1 if top and single_top else int(rng.integers(1, max(2, entities[-1] // 2 + 1))))
        if top and not single_top:
            entities[-1] = int(rng.integers(2, 4)) if entities[-2] >= 4 else entities[-2]
    tiers = []
    for m, count in enumerate(entities):
        parents = None
        if m + 1 < num_tiers:
            above = entities[m + 1]
            parents = np.concatenate((np.arange(above), rng.integers(0, above, count - above)))
            rng.shuffle(parents)
        speed = 10.0**m
        tiers.append(
            Tier(
                f"tier{m + 1}",
                compute_flops=speed * rng.uniform(1e9, 4e9, count),
                memory_bits=np.full(count, np.inf),
                uplink_bps=rng.uniform(1e6, 1e7, count) * (1 + 3 * m)
                if parents is not None
                else np.full(count, np.inf),
                downlink_bps=rng.uniform(3e6, 3e7, count) if parents is not None else np.full(count, np.inf),
                fed_uplink_bps=rng.uniform(1e6, 1e7, count),
                fed_downlink_bps=rng.uniform(1e6, 1e7, count),
                parents=parents,
            )
        )
    L = num_layers
    flops = rng.uniform(1e5, 1e7, L)
    activation = np.sort(rng.uniform(1e3, 5e5, L))[::-1] * rng.uniform(0.3, 1, L)
    parameters = np.sort(rng.uniform(1e3, 2e6, L)) * rng.uniform(0.3, 1, L)
    profile = LayerProfile(
        tuple(f"layer{i + 1}" for i in range(L)), flops, 2 * flops, activation, activation, parameters, 0 * parameters
    )
    constants = Constants(
        smoothness=2.0,
        initial_gap=rng.uniform(0.5, 5),
        target=np.nan,
        gradient_variance=rng.uniform(0.2, 1.0, L),
        gradient_second_moment=rng.uniform(0.5, 1.5, L),
        gradient_dissimilarity=rng.uniform(0.0, 2.0, (num_tiers, L)) * rng.integers(0, 2),
        drift=drift,
    )
    problem = Problem(
        "random", System(tuple(tiers)), profile, constants, batch_size=int(rng.integers(1, 32)), learning_rate=0.05
    )
    # The layer that drifts least, alone in a tier, uses up the margin at `longest_interval`: no need to try longer.
    coefficients = drift_coefficients(problem)[:, problem.system.averaged].reshape(3, -1, 1)
    reach = quadratic(coefficients, np.array([float(longest_interval)])).min()
    target = noise_floor(problem) + generosity * reach * rng.uniform(0.5, 1.0)
    problem = replace(problem, constants=replace(constants, target=target))
    return with_memory_limits(rng, problem) if memory else problem


def with_labels_on_devices(problem: Problem) -> Problem:
    """The same problem where the devices have the last layers, too; longer intervals still miss its target."""
    zeta = problem.constants.gradient_dissimilarity
    constants = replace(problem.constants, gradient_dissimilarity=np.concatenate((zeta, zeta[:1])))
    return replace(problem, system=System.returning(problem.system.tiers), constants=constants)


def with_memory_limits(rng: np.random.Generator, problem: Problem) -> Problem:
    """The same problem with memories in which some cut vector, but not every one, fits; averages may take some too."""
    problem = replace(problem, averaging=("plain", "corrected")[int(rng.integers(0, 2))])
    cuts = rng.choice(cut_vectors(problem, False))
    need = client_memory(problem, cuts)
    tiers = []
    for m, tier in enumerate(problem.system.tiers):
        slack = rng.uniform(1.01, 2.0) if rng.random() < 0.7 else np.inf
        tiers.append(replace(tier, memory_bits=problem.system.most_hosted[m] * need[m] * slack))
    if problem.system.returns:
        return replace(problem, system=System.returning(tiers[:-1]))
    return replace(problem, system=replace(problem.system, tiers=tuple(tiers)))


def with_cohort(rng: np.random.Generator, problem: Problem, cohort: int, longest_interval: int = 8) -> Problem:
    """The same problem for cohorts of clients that differ, with a target that longer intervals of the devices miss.

    Where a cohort misses no machine, those of the other tiers miss it too.
    """
    zeta = rng.uniform(0.1, 1.5, (problem.system.num_tiers, problem.num_layers))
    constants = replace(problem.constants, gradient_dissimilarity=np.sort(zeta, axis=0)[::-1])
    problem = replace(problem, system=replace(problem.system, cohort=cohort), constants=constants)
    coefficients = drift_coefficients(problem)
    coefficients[:, 0] += np.add(*staying_cohort(problem))[:, None]
    bounded = problem.system.averaged & ~problem.system.missable
    reach = quadratic(coefficients[:, bounded].reshape(3, -1, 1), np.array([float(longest_interval)])).min()
    target = noise_floor(problem) + reach * rng.uniform(0.5, 1.0)
    return replace(problem, constants=replace(constants, target=target))


def cohorts(system: System) -> Iterator[tuple[int, ...]]:
    """Every cohort there is."""
    return itertools.combinations(range(system.num_clients), system.participants)


def latencies_by_cohorts(problem: Problem, cuts: np.ndarray) -> tuple[float, np.ndarray]:
    """T_S and T_{m,A}, (M,), as means over all cohorts, each with the slowest of those who take part."""
    system, each = problem.system, round_parts(problem, cuts).total_s
    split, sending = [], []
    for cohort in cohorts(system):
        members = list(cohort)
        split.append(each[members].max())
        hosts = [np.unique(row[members]) for row in system.hosts]
        pairs = zip(system.tiers, hosts, strict=True)
        sending.append([1 / t.fed_uplink_bps[j].min() + 1 / t.fed_downlink_bps[j].min() for t, j in pairs])
    seconds = np.where(np.array(system.entities) > 1, np.mean(sending, axis=0), 0.0)
    return float(np.mean(split)), averaged_bits(problem, cuts) * seconds


def with_planned_codes(rng: np.random.Generator, problem: Problem, most: int = 3) -> Problem:
    """The same problem with one to `most` codes allowed on every link, and noise that makes the choice matter."""
    tiers = []
    for m, tier in enumerate(problem.system.tiers):
        links = (["up", "down"] if m + 1 < problem.system.num_tiers else []) + (
            ["average"] if tier.entities > 1 else []
        )
        given = {}
        for link in links:
            given[link] = [str(c) for c in rng.choice(list(CODES), int(rng.integers(1, most + 1)), replace=False)]
        codes = tier_codes(given or None, "code", top=m + 1 == problem.system.num_tiers, entities=tier.entities)
        tiers.append(replace(tier, codes=codes))
    constants, system = problem.constants, replace(problem.system, tiers=tuple(tiers))
    scale = 1.0 if constants.by_loss else constants.smoothness * problem.step
    left = constants.target - noise_floor(problem)
    noise = left * system.participants / scale * 10 ** rng.uniform(-3.5, 0.0, (2, problem.num_layers))
    return replace(problem, system=system, constants=replace(constants, coding_noise=of_all_codes(noise)))


def code_vectors(problem: Problem) -> Iterator[tuple[LinkCodes, ...]]:
    """All codes that the links of a problem may have."""
    each = [[(link, code) for code in t.codes.allowed(link)] for t in problem.system.tiers for link in LINKS]
    for chosen in itertools.product(*each):
        rest = iter(chosen)
        yield tuple(replace(t.codes, **dict(itertools.islice(rest, len(LINKS)))) for t in problem.system.tiers)


def cut_vectors(problem: Problem, allow_empty_tiers: bool) -> np.ndarray:
    """All cut vectors by C4, straight from its definition."""
    M, L = problem.system.num_tiers, problem.num_layers
    if allow_empty_tiers:
        last = L - 1 if problem.system.returns else L
        return np.array(list(itertools.combinations_with_replacement(range(1, last + 1), M - 1)))
    return np.array(list(itertools.combinations(range(1, L), M - 1)))


@dataclass
class Best:
    cuts: tuple[int, ...]
    intervals: tuple[int, ...]
    objective_s: float
    codes: tuple[LinkCodes, ...] | None = None


def exhaustive(problem: Problem, *, allow_empty_tiers: bool = False, longest: int = 8) -> Best | None:
    """The best of every plan there is; intervals beyond `longest` would each alone miss the target (checked)."""
    if not problem.system.plans_codes:
        return _exhaustive(problem, allow_empty_tiers, longest)
    best = None
    for codes in code_vectors(problem):
        found = _exhaustive(problem.as_planned(Plan((), (), codes)), allow_empty_tiers, longest)
        if found is not None and (best is None or found.objective_s < best.objective_s):
            best = replace(found, codes=codes)
    return best


def _exhaustive(problem: Problem, allow_empty_tiers: bool, longest: int) -> Best | None:
    """The best of every plan in the codes in force."""
    M = problem.system.num_tiers
    cuts = cut_vectors(problem, allow_empty_tiers)
    needs = client_memory(problem, cuts)
    for m, tier in enumerate(problem.system.tiers):
        hosted = np.minimum(problem.system.clients_per_entity[m], problem.system.participants)
        per_entity = needs[:, m, None] * hosted
        cuts, needs = (x[(per_entity < tier.memory_bits).all(axis=1)] for x in (cuts, needs))
    best = None
    for c in cuts:
        choices = []
        for m in range(M):
            values = np.arange(1, longest + 1)
            alone = np.ones((longest, M), dtype=int)
            alone[:, m] = values
            reach = margin(problem, c, alone) > 0
            empty = ([0, *c, problem.num_layers][m + 1]) == ([0, *c, problem.num_layers][m])
            if problem.system.entities[m] == 1 or empty:
                choices.append([1])
            elif problem.system.missable[m]:
                choices.append(values[reach])  # no longer than the devices', below
            else:
                alone[-1, m] = longest + 1
                assert margin(problem, c, alone[-1]) <= 0, "raise `longest`: a longer interval could still be best"
                choices.append(values[reach])
        if not all(len(some) for some in choices):
            continue
        intervals = np.stack(np.meshgrid(*choices, indexing="ij"), axis=-1).reshape(-1, M)
        missed = intervals[:, problem.system.missable]
        intervals = intervals[(missed <= intervals[:, :1]).all(axis=1)]
        if problem.system.sampled:
            split_s, aggregation_s = latencies_by_cohorts(problem, c)
        else:
            split_s, aggregation_s = split_latency(problem, c), aggregation_latency(problem, c)
        values = objective_of(rounds_needed(problem, c, intervals), split_s, aggregation_s, intervals)
        k = int(np.argmin(values))
        if np.isfinite(values[k]) and (best is None or values[k] < best.objective_s):
            best = Best(tuple(map(int, c)), tuple(map(int, intervals[k])), float(values[k]))
    return best
