"""Hierarchical split federated learning in one short file: torch and the standard library, nothing of hsfl.

This is Algorithm 1 of Lin et al., "Hierarchical Split Federated Learning", on a simulated clock (their Section V-A).
Tiers, entities, clients and layers count from 0. The data are tensors made here; any others of the same form will do.
"""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode


@dataclass
class Tier:
    hosts: list[int]  # the entity of this tier that serves client n
    flops: list[float]  # FLOP/s of each entity, shared evenly by its clients
    up: list[float]  # bit/s to the tier above, shared likewise; empty at the top
    down: list[float]  # bit/s from the tier above
    fed_up: list[float]  # bit/s to the fed server; one sub-model per entity travels
    fed_down: list[float]


def train(layers, tiers, cuts, intervals, batches, learning_rate):
    """After every round: its number, the simulated time, the clients' losses, and the sub-models `models[m][j]`.

    Tier m holds layers[cuts[m-1]:cuts[m]]. `batches` are the inputs (N, b, ...) and targets (N, b) of every round.
    """
    batches = list(batches)
    edges = [0, *cuts, len(layers)]
    whole = nn.Sequential(*layers)
    models = [[copy.deepcopy(whole[edges[m] : edges[m + 1]]) for _ in tier.flops] for m, tier in enumerate(tiers)]
    round_s, average_s = latencies(layers, tiers, cuts, batches[0][0][0])
    time_s = 0.0
    for t, (inputs, targets) in enumerate(batches, start=1):
        for tier_models in models:
            for model in tier_models:
                model.zero_grad()
        losses = []
        for n in range(len(inputs)):
            path = [models[m][tier.hosts[n]] for m, tier in enumerate(tiers)]
            losses.append(split_pass(path, inputs[n], targets[n]))
        for tier, tier_models in zip(tiers, models, strict=True):
            for j, model in enumerate(tier_models):
                step(model, learning_rate, tier.hosts.count(j))
        time_s += round_s
        for m, tier in enumerate(tiers):
            if len(tier.flops) > 1 and t % intervals[m] == 0:
                mean = average(models[m], tier.hosts)
                for model in models[m]:
                    model.load_state_dict(mean)
                time_s += average_s[m]
        yield t, time_s, torch.stack(losses), models


def split_pass(path, inputs, targets):
    """One client's mini-batch up through its sub-models and the gradients back down; they add up in the sub-models."""
    received, sent = [], []
    message = inputs
    for model in path:
        # Only numbers cross a cut: what arrives in a tier has no history there.
        message = message.detach().requires_grad_(bool(received))
        received.append(message)
        message = model(message)
        sent.append(message)
    loss = cross_entropy(message, targets)
    loss.backward()
    for m in reversed(range(len(path) - 1)):
        sent[m].backward(received[m + 1].grad)
    return loss.detach()


@torch.no_grad()
def step(model, learning_rate, clients):
    """SGD with the mean gradient of an entity's clients."""
    for parameter in model.parameters():
        parameter -= learning_rate * parameter.grad / clients


def average(models, hosts):
    """The mean of a tier's sub-models, each weighted by the share of clients it serves, N_j / N."""
    shares = [hosts.count(j) / len(hosts) for j in range(len(models))]
    states = [model.state_dict() for model in models]
    return {name: sum(w * s[name] for w, s in zip(shares, states, strict=True)) for name in states[0]}


def averaged_model(models, tiers):
    """The state dict of the model that is evaluated: every tier's mean, whether or not it was averaged this round."""
    return {name: w for m, tier in enumerate(tiers) for name, w in average(models[m], tier.hosts).items()}


def latencies(layers, tiers, cuts, batch):
    """Seconds of a round of split training, T_S, and of averaging each tier, T_{m,A}."""
    work, output_bits, weight_bits = layer_costs(layers, batch)
    edges = [0, *cuts, len(layers)]
    clients_s = []
    for n in range(len(tiers[0].hosts)):
        total = 0.0
        for m, tier in enumerate(tiers):
            j = tier.hosts[n]
            sharing = tier.hosts.count(j)
            total += sum(work[edges[m] : edges[m + 1]]) * sharing / tier.flops[j]
            if m < len(cuts):  # activations go up and gradients of the same size come down
                total += output_bits[cuts[m] - 1] * sharing * (1 / tier.up[j] + 1 / tier.down[j])
        clients_s.append(total)
    average_s = [
        sum(weight_bits[edges[m] : edges[m + 1]]) * (1 / min(tier.fed_up) + 1 / min(tier.fed_down))
        if len(tier.flops) > 1
        else 0.0  # a single entity has nobody to average with
        for m, tier in enumerate(tiers)
    ]
    return max(clients_s), average_s  # everybody waits for the slowest client


def layer_costs(layers, batch):
    """For each layer: FLOPs of both passes and bits of the output, of one mini-batch, and bits of the weights."""
    work, output_bits, weight_bits = [], [], []
    for layer in copy.deepcopy(list(layers)):
        with FlopCounterMode(display=False) as counter:
            # The inputs of the first layer are data: they need no gradient, which saves work.
            batch = layer(batch.detach().requires_grad_(bool(work)))
            batch.sum().backward()
        work.append(counter.get_total_flops())
        output_bits.append(8 * batch.nbytes)
        weight_bits.append(sum(8 * weight.nbytes for weight in layer.parameters()))
    return work, output_bits, weight_bits


def main(rounds=200, clients=12, batch_size=16):
    torch.manual_seed(0)
    centres = torch.randn(10, 2, 20)  # ten classes, two clouds of points each

    def samples(labels):
        return centres[labels, torch.randint(2, labels.shape)] + 0.6 * torch.randn(*labels.shape, 20)

    # Every client sees four of the ten classes: without averaging their sub-models would drift apart.
    own = (torch.arange(clients)[:, None] * 10 // clients + torch.arange(4)) % 10
    targets = own[torch.arange(clients)[:, None], torch.randint(4, (rounds, clients, batch_size))]
    batches = [(samples(labels), labels) for labels in targets]
    test_targets = torch.randint(10, (2000,))
    test_inputs = samples(test_targets)

    layers = [
        nn.Sequential(nn.Linear(20, 64), nn.ReLU()),
        nn.Sequential(nn.Linear(64, 64), nn.ReLU()),
        nn.Sequential(nn.Linear(64, 64), nn.ReLU()),
        nn.Linear(64, 10),
    ]
    devices = Tier(
        hosts=list(range(clients)),
        flops=[1e6 * (1 + n % 3) for n in range(clients)],
        up=[4e6 + 1e5 * n for n in range(clients)],
        down=[10e6] * clients,
        fed_up=[4e6] * clients,
        fed_down=[10e6] * clients,
    )
    edges = Tier(
        hosts=[n // 4 for n in range(clients)],
        flops=[20e6] * 3,
        up=[20e6, 30e6, 40e6],
        down=[20e6] * 3,
        fed_up=[20e6] * 3,
        fed_down=[20e6] * 3,
    )
    cloud = Tier(hosts=[0] * clients, flops=[1e9], up=[], down=[], fed_up=[], fed_down=[])

    tiers = [devices, edges, cloud]
    whole = nn.Sequential(*layers)
    for t, time_s, losses, models in train(layers, tiers, (1, 2), (10, 5, 1), batches, learning_rate=0.1):
        if t % 20 == 0:
            whole.load_state_dict(averaged_model(models, tiers))
            with torch.no_grad():
                accuracy = (whole(test_inputs).argmax(1) == test_targets).double().mean()
            print(f"round {t:3}  {time_s:6.2f} s simulated  loss {losses.mean():.3f}  accuracy {accuracy:6.1%}")


if __name__ == "__main__":
    main()
