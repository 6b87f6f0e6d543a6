"""The coordinator's part in a measurement: which gradients are taken, and what machines found in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import torch

from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.coordinator import Answer
from hsfl.distributed.places import FED, Places
from hsfl.engine.entities import EntityBackend
from hsfl.engine.losses import mean_loss
from hsfl.engine.probe import (
    SMOOTHNESS_BATCHES,
    Measurement,
    Statistics,
    Trial,
    coded_cut,
    coding_trials,
    mean_over_clients,
    noise_of_codes,
    noise_tried,
    variance_of,
)
from hsfl.errors import HsflError
from hsfl.problem.profile import FloatArray

Ask = Callable[..., Answer]


def measured(
    ask: Ask, parts: EntityBackend, places: Places, batches: int, step: float | None, *, coding: bool
) -> Measurement:
    """Measure as `engine.probe.measure` does, on machines; `ask` gives them a command."""
    everyone = [wire.Trial(client=client) for client in range(parts.num_clients)]
    ask(probe=wire.Probe(batches=batches))
    losses = []
    for k in range(batches):
        done, _ = ask(probe_pass=wire.ProbePass(use=wire.ProbePass.ADD, trials=everyone, first=k, count=1))
        found = [done.losses.get(client, float("nan")) for client in range(parts.num_clients)]
        losses.append(mean_loss(torch.tensor(found).double(), parts.topology.parts_of(range(parts.num_clients))))
    done, _ = ask(probe_means=wire.ProbeMeans(back=step is not None))
    statistics = _statistics(parts, places, done, batches, sum(losses) / len(losses))
    noise = _coding_noise(ask, parts) if coding else None
    smoothness = float("nan")
    if step is not None:
        smoothness = _smoothness(ask, everyone, min(SMOOTHNESS_BATCHES, batches), step, statistics.overall)
    return statistics.measurement(parts.topology, batches, smoothness, noise)


def _statistics(parts: EntityBackend, places: Places, done: wire.Done, batches: int, loss: float) -> Statistics:
    """What all machines found about every client and layer, put together."""
    topology, tiers = parts.topology, parts._tier_layers()
    clients, layers = topology.num_clients, tiers[-1].stop
    moments, squares = (torch.zeros(clients, layers, dtype=torch.float64) for _ in range(2))
    of_entities = _table(done.found[FED].of_entities, topology.num_tiers, layers)
    for name, (tier, number) in places.entities.items():
        one, own = done.found[name], slice(tiers[tier].start, tiers[tier].stop)
        served = list(topology.clients[tier][number])
        moments[served, own] = _table(one.moments, len(served), len(tiers[tier]))
        squares[served, own] = _table(one.squares, len(served), len(tiers[tier]))
        of_entities[: tier + 1, own] += _table(one.of_entities, tier + 1, len(tiers[tier]))
    variances = variance_of(moments, squares, batches)
    return Statistics(
        loss=torch.tensor(loss),
        variance=mean_over_clients(variances, topology.parts_of(range(clients))),
        greatest_variance=variances.amax(0),
        greatest_moment=moments.amax(0),
        of_entities=of_entities,
        overall=_table(done.found[FED].overall, 1, layers)[0],
    )


def _table(values: Sequence[float], rows: int, columns: int) -> torch.Tensor:
    if len(values) != rows * columns:
        raise HsflError("a measurement came back without the numbers of all machines; they have other scenarios")
    return torch.tensor(list(values), dtype=torch.float64).view(rows, columns)


def _smoothness(ask: Ask, everyone: Sequence[wire.Trial], batches: int, step: float, overall: torch.Tensor) -> float:
    """How much gradients change over one step along the mean gradient; 0 where that is 0."""
    length = step * sqrt(float(overall.sum()))
    if not length > 0:
        return 0.0
    ask(probe_pass=wire.ProbePass(use=wire.ProbePass.KEEP, trials=everyone, count=batches))
    done, _ = ask(probe_pass=wire.ProbePass(use=wire.ProbePass.COMPARE, trials=everyone, count=batches, step=step))
    return max(sqrt(_apart(done, one.client)) for one in everyone) / length


def _coding_noise(ask: Ask, parts: EntityBackend) -> FloatArray:
    """The noise of codes: every client tries one code after the other, all clients at the same time."""
    trials = coding_trials(len(parts._layers), parts.topology.order)
    ask(probe_pass=wire.ProbePass(use=wire.ProbePass.KEEP, trials=[wire.Trial(client=n) for n in trials], count=1))
    apart: list[tuple[Trial, float]] = []
    for turn in range(max(len(own) for own in trials.values())):
        now = {client: own[turn] for client, own in trials.items() if turn < len(own)}
        cuts = {client: coded_cut(trial) for client, trial in now.items()}
        coded = [
            wire.Trial(client=client, cut=cut.after, up=cut.up.code.name, down=cut.down.code.name)
            for client, cut in cuts.items()
        ]
        done, _ = ask(probe_pass=wire.ProbePass(use=wire.ProbePass.COMPARE, trials=coded, count=1))
        apart += [(trial, _apart(done, client)) for client, trial in now.items()]
    return noise_of_codes(noise_tried(len(parts._layers), apart))


def _apart(done: wire.Done, client: int) -> float:
    """The squared distance that machines found for a client, over all layers, wherever they are."""
    return sum(found.apart[client] for found in done.found.values() if client in found.apart)
