"""The stacked backend gives the numbers of the reference, and both reduce to what is known."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl.engine.links import CODECS
from hsfl.errors import HsflError
from hsfl.models import build, chain

BATCH, CLASSES = 4, 3
OPTIMIZERS = {
    "sgd": {"name": "sgd", "lr": 0.1},
    "momentum": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"name": "adam", "lr": 0.01, "weight_decay": 0.01},
    "adamw": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
}


def layers(norm: str = "none", dropout: float = 0.0) -> list[nn.Module]:
    """Five small layers: three convolutions, each with what belongs to it, and two linear ones."""
    torch.manual_seed(0)

    def normalisation(channels: int) -> list[nn.Module]:
        if norm == "batch":
            return [nn.BatchNorm2d(channels)]
        return [nn.GroupNorm(2, channels)] if norm == "group" else []

    chosen = [
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *normalisation(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), *normalisation(4), nn.ReLU(), nn.Dropout(dropout)),
        nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), *normalisation(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(6 * 9, 8), nn.Tanh(), nn.Dropout(dropout)),
        nn.Linear(8, CLASSES),
    ]
    return [layer.double() for layer in chosen]


def random_hosts(rng: np.random.Generator, tiers: int, clients: int, single_top: bool) -> list[list[int]]:
    """A ragged tree over the clients, its entities numbered at random."""
    hosts = [list(map(int, rng.permutation(clients)))]
    for m in range(1, tiers):
        below = max(hosts[-1]) + 1
        count = 1 if m == tiers - 1 and single_top else int(rng.integers(1, max(2, below)))
        parents = np.concatenate((np.arange(count), rng.integers(0, count, below - count)))
        rng.shuffle(parents)
        hosts.append([int(parents[j]) for j in hosts[-1]])
    return hosts


class RandomTree:
    """A tree of 2 to 4 tiers over 4 to 7 clients, and cuts of five layers for it.

    With seeds from 100 to 199, and every other hundred from there on, the devices come once more, as the last tier.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tiers, self.clients = 2 + seed % 3, int(self.rng.integers(4, 8))
        self.hosts, self.last = random_hosts(self.rng, self.tiers, self.clients, single_top=bool(seed % 2)), 5
        if seed // 100 % 2:
            self.hosts, self.tiers, self.last = [*self.hosts, self.hosts[0]], self.tiers + 1, 4

    def cuts(self) -> list[int]:
        return sorted(map(int, self.rng.integers(1, self.last + 1, self.tiers - 1)))

    def train_alike(self, both: list[hsfl.engine.Backend], rounds: int, moves: Collection[int]) -> Iterator[int]:
        """Rounds, averages at random intervals and moves of cuts after some rounds: the round, after each.

        Both backends have the same losses.
        """
        intervals = self.rng.integers(1, 5, self.tiers)
        for t in range(1, rounds + 1):
            inputs, targets = batch(self.rng, self.clients)
            ours, theirs = (backend.step(inputs, targets) for backend in both)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
            for m, backend in itertools.product(range(self.tiers), both):
                if t % intervals[m] == 0:
                    backend.average(m)
            if t in moves:
                cuts = self.cuts()
                for backend in both:
                    backend.move(cuts)
            yield t


def swap_through_files(both: list[hsfl.engine.Backend], folder: Path) -> None:
    """Each of two backends goes on from what the other saved."""
    for backend in both:
        backend.save(folder / type(backend).__name__)
    for backend, other in zip(both, reversed(both), strict=True):
        backend.load(folder / type(other).__name__)


def batch(rng: np.random.Generator, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.from_numpy(rng.normal(size=(clients, BATCH, 2, 6, 6)))
    return inputs, torch.from_numpy(rng.integers(0, CLASSES, (clients, BATCH)))


def assert_same_state(one: hsfl.engine.Backend, other: hsfl.engine.Backend) -> None:
    for client in range(one.num_clients):
        ours, theirs = one.client_state(client), other.client_state(client)
        assert list(ours) == list(theirs)
        for key, value in ours.items():
            torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-9, msg=lambda text, k=key: f"{k}: {text}")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("norm", "dropout"), [("none", 0.0), ("batch", 0.0), ("group", 0.3)])
@pytest.mark.parametrize("seed", [*range(4), 101])
def test_stacked_equals_reference(seed: int, norm: str, dropout: float, optimizer: str) -> None:
    """Random trees of 2 to 4 tiers, cuts, intervals and moves of cuts in mid-training, in float64."""
    tree, options = RandomTree(seed), {"dtype": torch.float64, "seed": seed}
    cuts = tree.cuts()
    both = [
        hsfl.backend(kind, layers(norm, dropout), tree.hosts, cuts, OPTIMIZERS[optimizer], **options)
        for kind in ("reference", "stacked")
    ]
    for _ in tree.train_alike(both, rounds=8, moves=(3, 6)):
        assert_same_state(*both)
    ours, theirs = (backend.global_state() for backend in both)
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-9)
    data = (torch.randn(7, 2, 6, 6, dtype=torch.float64), torch.randint(0, CLASSES, (7,)))
    ours, theirs = (backend.evaluate(data) for backend in both)
    assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(("name", "shape", "cuts"), [("resnet18", (3, 16, 16), (3, 7)), ("gpt", (12,), (1, 9))])
def test_traced_models_train_alike(name: str, shape: tuple[int, ...], cuts: tuple[int, int]) -> None:
    """Chains of traced models: batch norm inside residual blocks, tokens instead of images."""
    model = build(name, shape)
    torch.manual_seed(6)
    inputs = (
        torch.randn(3, 4, *shape, dtype=torch.float64) if len(shape) == 3 else torch.randint(0, 256, (3, 4, *shape))
    )
    targets = torch.randint(0, 10, (3, 4) if len(shape) == 3 else (3, 4, *shape))
    parts = list(chain(model, inputs[0].float() if inputs.is_floating_point() else inputs[0]))
    hosts = [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    both = [
        hsfl.backend(kind, parts, hosts, cuts, OPTIMIZERS["momentum"], dtype=torch.float64)
        for kind in ("reference", "stacked")
    ]
    for _ in range(2):
        ours, theirs = (backend.step(inputs, targets) for backend in both)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert_same_state(*both)


@pytest.mark.parametrize("kind", ["reference", "stacked"])
@pytest.mark.parametrize("cuts", [(1, 2), (1, 4), (2, 3), (3, 3), (4, 5), (1, 2, 4), (2, 2, 3)])
def test_all_intervals_1_is_centralised_sgd(kind: str, cuts: tuple[int, ...]) -> None:
    """On the union of the clients' mini-batches, whatever the cuts; with three, the devices have the last layers."""
    hosts = [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 2], [0] * 6, [0, 1, 2, 3, 4, 5]][: len(cuts) + 1]
    backend = hsfl.backend(kind, layers(), hosts, cuts, OPTIMIZERS["momentum"], dtype=torch.float64)
    model = nn.Sequential(*layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    rng = np.random.default_rng(0)
    for _ in range(5):
        inputs, targets = batch(rng, 6)
        losses = backend.step(inputs, targets)
        for tier in range(len(hosts)):
            backend.average(tier)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.flatten(0, 1)), targets.flatten())
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(losses.mean(), loss, rtol=0, atol=1e-12)
    for key, value in backend.client_state(3).items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["reference", "stacked"])
def test_everything_on_the_device_is_fedavg(kind: str) -> None:
    """All layers but the loss on the devices, averaged every k rounds: FedAvg with k local steps."""
    k, clients = 3, 4
    backend = hsfl.backend(
        kind, layers(), [list(range(clients)), [0] * clients], (5,), OPTIMIZERS["sgd"], dtype=torch.float64
    )
    rng = np.random.default_rng(1)
    rounds = [batch(rng, clients) for _ in range(2 * k)]
    for t, (inputs, targets) in enumerate(rounds, start=1):
        backend.step(inputs, targets)
        if t % k == 0:
            backend.average(0)
    world = nn.Sequential(*layers())
    for start in range(0, 2 * k, k):
        locals_ = []
        for n in range(clients):
            local = copy.deepcopy(world)
            optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
            for inputs, targets in rounds[start : start + k]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(inputs[n]), targets[n]).backward()
                optimizer.step()
            locals_.append(local.state_dict())
        world.load_state_dict({key: sum(s[key] for s in locals_) / clients for key in locals_[0]})
    for key, value in backend.global_state().items():
        torch.testing.assert_close(value, world.state_dict()[key], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["reference", "stacked"])
def test_two_tiers_are_split_federated_learning(kind: str) -> None:
    """SFL: own client-side models, one server-side model stepped with the mean gradient of all clients."""
    clients, cut = 3, 2
    backend = hsfl.backend(kind, layers(), [[0, 1, 2], [0, 0, 0]], (cut,), OPTIMIZERS["sgd"], dtype=torch.float64)
    fronts = [nn.Sequential(*layers()[:cut]) for _ in range(clients)]
    server = nn.Sequential(*layers()[cut:])
    rng = np.random.default_rng(2)
    for _ in range(4):
        inputs, targets = batch(rng, clients)
        backend.step(inputs, targets)
        server.zero_grad()
        for n, front in enumerate(fronts):
            front.zero_grad()
            nn.functional.cross_entropy(server(front(inputs[n])), targets[n]).backward()
        with torch.no_grad():
            for parameter in server.parameters():
                parameter -= 0.1 * parameter.grad / clients
            for front in fronts:
                for parameter in front.parameters():
                    parameter -= 0.1 * parameter.grad
    for n in range(clients):
        whole = nn.Sequential(*fronts[n], *server).state_dict()
        for key, value in backend.client_state(n).items():
            torch.testing.assert_close(value, whole[key], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["reference", "stacked"])
def test_labels_on_the_devices_are_u_shaped_split_learning(kind: str) -> None:
    """Own heads and own tails, one body for all; heads are averaged every 2 rounds, tails every 3."""
    clients, (first, last) = 3, (1, 4)
    hosts = [[0, 1, 2], [0, 0, 0], [0, 1, 2]]
    backend = hsfl.backend(kind, layers(), hosts, (first, last), OPTIMIZERS["sgd"], dtype=torch.float64)
    heads = [nn.Sequential(*layers()[:first]) for _ in range(clients)]
    tails = [nn.Sequential(*layers()[last:]) for _ in range(clients)]
    body, rng = nn.Sequential(*layers()[first:last]), np.random.default_rng(2)
    for t in range(1, 8):
        inputs, targets = batch(rng, clients)
        losses = backend.step(inputs, targets)
        body.zero_grad()
        for n, (head, tail) in enumerate(zip(heads, tails, strict=True)):
            loss = nn.functional.cross_entropy(tail(body(head(inputs[n]))), targets[n])
            loss.backward()
            torch.testing.assert_close(losses[n], loss.detach(), rtol=0, atol=1e-12)
        with torch.no_grad():
            for parameter in body.parameters():
                parameter -= 0.1 * parameter.grad / clients
            for part in (*heads, *tails):
                for parameter in part.parameters():
                    parameter -= 0.1 * parameter.grad
                part.zero_grad()
            for tier, group, interval in ((0, heads, 2), (2, tails, 3)):
                if t % interval == 0:
                    backend.average(tier)
                    for same in zip(*(part.parameters() for part in group), strict=True):
                        mean = torch.stack(same).mean(0)
                        for parameter in same:
                            parameter.copy_(mean)
    for n in range(clients):
        whole = nn.Sequential(*heads[n], *body, *tails[n]).state_dict()
        for key, value in backend.client_state(n).items():
            torch.testing.assert_close(value, whole[key], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "other"), [("reference", "stacked"), ("stacked", "reference"), ("stacked", "stacked")]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_one_backend_saves_another_continues(kind: str, other: str, optimizer: str, tmp_path) -> None:
    hosts = [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]]
    options = {"dtype": torch.float64, "seed": 3}
    straight = hsfl.backend(kind, layers("batch", 0.2), hosts, (1, 3), OPTIMIZERS[optimizer], **options)
    rng = np.random.default_rng(4)
    rounds = [batch(rng, 4) for _ in range(6)]
    for inputs, targets in rounds[:3]:
        straight.step(inputs, targets)
    straight.move((2, 4))
    straight.save(tmp_path / "saved.safetensors")
    resumed = hsfl.backend(other, layers("batch", 0.2), hosts, (1, 3), OPTIMIZERS[optimizer], **options)
    resumed.load(tmp_path / "saved.safetensors")
    assert (resumed.round, resumed.cuts) == (3, (2, 4))
    for inputs, targets in rounds[3:]:
        ours, theirs = straight.step(inputs, targets), resumed.step(inputs, targets)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert_same_state(straight, resumed)


def test_dropout_depends_on_the_client_and_not_on_its_group() -> None:
    """The same client draws the same mask alone and among others, another one in the next round."""
    inputs, targets = batch(np.random.default_rng(5), 4)
    losses = []
    for hosts in ([[0, 1, 2, 3], [0, 0, 0, 0]], [[0, 1, 2, 3], [0, 0, 1, 1]]):
        backend = hsfl.backend(
            "stacked", layers("none", 0.5), hosts, (1,), OPTIMIZERS["sgd"], dtype=torch.float64, seed=7
        )
        losses.append(backend.step(inputs, targets))
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)
    still = {"name": "sgd", "lr": 1e-12}
    backend = hsfl.backend("stacked", layers("none", 0.5), hosts, (1,), still, dtype=torch.float64, seed=7)
    assert (backend.step(inputs, targets) - backend.step(inputs, targets)).abs().min() > 1e-4


def test_masks_keep_the_right_share() -> None:
    from hsfl.engine.per_client import SeededDropout, seed_dropout

    dropout = SeededDropout(0.3, site=1)
    seed_dropout([dropout], [0, 1, 2], seed=1, round_=5)
    kept = dropout(torch.ones(3 * 100, 200)).view(3, -1)
    assert ((kept > 0).double().mean(1) - 0.7).abs().max() < 0.01
    assert kept.mean() == pytest.approx(1, abs=0.01)
    assert ((kept[0] > 0) == (kept[1] > 0)).double().mean() == pytest.approx(0.7**2 + 0.3**2, abs=0.01)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "fast"}, "backend 'fast': it must be one of reference, stacked"),
        ({"cuts": (3,)}, "3 tiers need 2 cuts"),
        ({"cuts": (4, 2)}, "must not fall"),
        ({"cuts": (0, 2)}, "between 1 and 5"),
        ({"hosts": [[0, 1], [0, 0, 0], [0, 0]]}, "hosts"),
        ({"hosts": [[0, 1, 2], [0, 2, 2], [0, 0, 0]]}, "without clients"),
        ({"hosts": [[0, 1, 2], [0, 0, 1], [0, 1, 1]]}, "several entities above"),
        ({"hosts": [[0, 1, 2], [0, 0, 0], [0, 2, 1]]}, "or write the hosts of tier 0 once more, as the last"),
        ({"hosts": [[0, 1, 2], [0, 0, 0], [0, 1, 2]], "cuts": (1, 5)}, "between 1 and 4"),
        ({"optimizer": {"name": "sgd"}}, "'lr' is missing"),
        ({"optimizer": {"name": "lion", "lr": 1.0}}, "one of sgd, adam, adamw"),
        ({"optimizer": {"name": "sgd", "lr": 1.0, "nesterov": True}}, "unknown setting 'nesterov'"),
        ({"layers": [nn.Linear(2, 2), nn.Dropout2d(0.5), nn.Linear(2, 2)]}, "Dropout2d"),
        ({"precision": "fp8"}, "precision 'fp8'"),
    ],
)
def test_wrong_arguments_are_one_sentence(change: dict, said: str) -> None:
    arguments = {
        "kind": "stacked",
        "layers": layers(),
        "hosts": [[0, 1, 2], [0, 0, 1], [0, 0, 0]],
        "cuts": (1, 2),
        "optimizer": OPTIMIZERS["sgd"],
    }
    with pytest.raises(HsflError) as caught:
        hsfl.backend(**(arguments | change))
    assert said in str(caught.value)


def mlp() -> tuple[list[nn.Module], torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    sizes = [(6, 9), (9, 8), (8, 7)]
    chosen = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in sizes]
    return [*chosen, nn.Linear(7, CLASSES)], torch.randn(4, BATCH, 6), torch.randint(0, CLASSES, (4, BATCH))


def images() -> tuple[list[nn.Module], torch.Tensor, torch.Tensor]:
    return (layers("batch", 0.2), *batch(np.random.default_rng(0), 4))


def tokens() -> tuple[list[nn.Module], torch.Tensor, torch.Tensor]:
    model, inputs = build("gpt", (12,)), torch.randint(0, 256, (4, BATCH, 12))
    return list(chain(model, inputs[0])), inputs, torch.randint(0, 256, (4, BATCH, 12))


SOME_CODES = [("int8", "int4"), ("int4", "bf16"), ("bf16", "int8")]


@pytest.mark.parametrize(
    ("model", "codes", "returns"),
    [
        *((model, codes, False) for model in (mlp, images) for codes in SOME_CODES),
        (tokens, SOME_CODES[0], False),
        (mlp, SOME_CODES[0], True),
        (images, SOME_CODES[1], True),
    ],
)
def test_coded_links_train_alike(model, codes: tuple[str, str], returns: bool, tmp_path) -> None:
    """What crosses the cuts is coded by sample; cuts move, and a saved state goes on in the other backend."""
    parts, inputs, targets = model()
    hosts, up, down = [[0, 1, 2, 3], [0, 1, 0, 1], [0, 0, 0, 0]], *codes
    written, tail = [{"up": up, "down": down}, {"up": down, "down": up}, "fp32"], ()
    if returns:
        hosts, written, tail = [*hosts, hosts[0]], ["fp32", "fp32", written[0], "fp32"], (3,)

    def made(kind: str, **options) -> hsfl.engine.Backend:
        given = {"dtype": torch.float64, "seed": 2} | options
        return hsfl.backend(kind, parts, hosts, (1, 2, *tail), OPTIMIZERS["momentum"], **given)

    both = [made(kind, codes=written) for kind in ("reference", "stacked")]
    plain = made("stacked")
    for t in range(6):
        ours, theirs, others = (backend.step(inputs, targets) for backend in (*both, plain))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        assert (ours - others).abs().max() > 1e-9
        if t == 1:
            for backend in both:
                backend.average(0)
                backend.move((2, 2, *tail) if model is mlp else (2, 3, *tail))  # a tier that relays codes, too
        if t == 3:
            swap_through_files(both, tmp_path)
    assert_same_state(*both)


@pytest.mark.parametrize("kind", ["reference", "stacked"])
def test_a_coded_round_by_hand(kind: str) -> None:
    """One step of SGD on what arrives: activations up and gradients down, each through its codec."""
    torch.manual_seed(1)
    below, above = nn.Linear(5, 6).double(), nn.Linear(6, CLASSES).double()
    inputs, targets = torch.randn(2, BATCH, 5, dtype=torch.float64), torch.randint(0, CLASSES, (2, BATCH))
    codes = [{"up": "int8", "down": "int4"}, "fp32"]
    backend = hsfl.backend(
        kind, [below, above], [[0, 1], [0, 0]], (1,), OPTIMIZERS["sgd"], codes=codes, dtype=torch.float64
    )
    backend.step(inputs, targets)
    for client in range(2):
        sent = below(inputs[client])
        arrived = CODECS["int8"].passed(sent).requires_grad_()
        loss = nn.functional.cross_entropy(above(arrived), targets[client])
        (gradient,) = torch.autograd.grad(loss, arrived)
        (weight,) = torch.autograd.grad(sent, [below.weight], CODECS["int4"].passed(gradient))
        stepped = below.weight - 0.1 * weight
        torch.testing.assert_close(backend.client_state(client)["0.weight"], stepped, rtol=0, atol=1e-12)
