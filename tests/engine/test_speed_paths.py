"""What makes backends fast must not change what they compute: feeds, captured rounds, precision, lean files."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hsfl
from hsfl.engine.averaging import AveragingRule
from hsfl.engine.precision import arithmetic
from hsfl.errors import DivergedError, HsflError
from tests.engine.test_backends import CLASSES, OPTIMIZERS, batch, layers, random_hosts

KINDS = ("reference", "stacked")
HOSTS = [[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0]]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: captured rounds exist only there")


def make(kind: str = "stacked", cuts=(1, 3), hosts=HOSTS, rule="momentum", norm="batch", dropout=0.2, **options):
    data = Resident(options.get("device", "cpu"), len(hosts[0]))
    options = {"dtype": torch.float64, "seed": 3, "data": data} | options
    return hsfl.backend(kind, layers(norm, dropout), hosts, cuts, OPTIMIZERS[rule], **options)


class Resident:
    """Data on the device, batches gathered and flipped from it, and draws for a few rounds."""

    def __init__(self, device: str = "cpu", clients: int = 4) -> None:
        torch.manual_seed(1)
        self.images = torch.randn(50, 2, 6, 6, dtype=torch.float64).to(device)
        self.labels = torch.randint(0, CLASSES, (50,)).to(device)
        draws = torch.stack((torch.randint(0, 50, (6, clients, 4)), torch.randint(0, 2, (6, clients, 4))), -1)
        self.drawn = draws.to(device)

    def draws(self, first_round: int, count: int) -> torch.Tensor:
        return self.drawn[first_round : first_round + count]

    def batch(self, draw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        index, flip = draw.unbind(-1)
        images = self.images[index]
        return torch.where(flip[..., None, None, None] == 1, images.flip(-1), images), self.labels[index]


def everything(backend) -> dict[str, torch.Tensor]:
    """All state, in keys of a saved file."""
    return {key: copies[0].detach().clone() for key, copies in backend._kept().items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_a_step_on_what_the_data_give(kind: str) -> None:
    data = Resident()
    one, other = make(kind), make(kind, capture=True, data=None)  # there is nothing to capture on a CPU
    for draw in data.drawn:
        assert torch.equal(one.train_round(), other.step(*data.batch(draw)))
    assert_equal(everything(one), everything(other))
    assert one.round == len(data.drawn)


@pytest.mark.parametrize("kind", KINDS)
def test_drift_by_hand(kind: str) -> None:
    hosts = [[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 0, 0]]
    backend = make(kind, hosts=hosts)
    for _ in range(3):
        backend.train_round()
    for tier, numbers in ((0, {0}), (1, {1, 2}), (2, {3, 4})):
        copies = []
        for client in range(4):
            state = backend.client_state(client)
            named = [(k, v) for k, v in state.items() if int(k.split(".")[0]) in numbers]
            parameters = {f"{n}.{name}" for n in numbers for name, _ in layers("batch", 0.2)[n].named_parameters()}
            copies.append(torch.cat([v.flatten() for k, v in named if k in parameters]))
        copies = torch.stack(copies)
        by_hand = (copies - copies.mean(0)).square().sum(1).mean()
        drift = backend.drift(tier)
        assert drift.shape == () and drift.dtype == torch.float64
        torch.testing.assert_close(drift, by_hand, rtol=1e-9, atol=1e-12)
        assert (drift > 1e-6) == (tier < 2)
        backend.average(tier)
        assert backend.drift(tier) < 1e-24


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_averaging_optimiser_state_is_an_option(rule: str) -> None:
    hosts = [[0, 1, 2, 3], [0, 0, 0, 1], [0, 0, 0, 0]]
    both = [make(kind, hosts=hosts, rule=rule, averaging=AveragingRule(average_state=True)) for kind in KINDS]
    local = make("stacked", hosts=hosts, rule=rule)
    for _ in range(2):
        for backend in (*both, local):
            backend.train_round()
    before = everything(local)
    for backend in (*both, local):
        backend.average(1)
    ours, theirs, kept = (everything(backend) for backend in (*both, local))
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-12)
        if key.startswith("slot.1."):
            twin = key.replace("slot.1.0", "slot.1.1")
            mean = 0.75 * before[key.replace("slot.1.1", "slot.1.0")] + 0.25 * before[twin]
            torch.testing.assert_close(value, mean, rtol=0, atol=1e-12)
            assert torch.equal(kept[key], before[key])


@pytest.mark.parametrize(("kind", "other"), list(itertools.product(KINDS, KINDS)))
@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
def test_files_hold_one_copy_per_entity_to_the_bit(kind: str, other: str, rule: str, tmp_path) -> None:
    from safetensors.torch import load_file

    saved, resumed = make(kind, rule=rule), make(other, rule=rule)
    for _ in range(2):
        saved.train_round()
    saved.average(0)
    saved.move((2, 4))
    saved.train_round()
    saved.save(tmp_path / "file")
    resumed.load(tmp_path / "file")
    assert_equal(everything(saved), everything(resumed))
    assert_equal(everything(saved), load_file(tmp_path / "file"))
    for client in range(4):
        assert_equal(saved.client_state(client), resumed.client_state(client))


def test_files_do_not_grow_with_the_clients_of_a_tier_of_one(tmp_path) -> None:
    sizes = []
    for clients in (2, 20):
        backend = make(hosts=[[0] * clients, [0] * clients], cuts=(1,), norm="none")
        backend.save(tmp_path / "file")
        sizes.append((tmp_path / "file").stat().st_size)
    assert sizes[1] - sizes[0] < 200  # the hosts themselves


def test_a_file_that_does_not_fit_changes_nothing(tmp_path) -> None:
    make(rule="adam").save(tmp_path / "adam")
    make(dtype=torch.float32).save(tmp_path / "float32")
    make(hosts=[[0, 1, 2, 3], [0, 1, 1, 1], [0, 0, 0, 0]]).save(tmp_path / "hosts")
    make(norm="none").save(tmp_path / "layers")
    (tmp_path / "text").write_text("nothing")
    backend = make(cuts=(2, 4))
    backend.train_round()
    before = everything(backend)
    for name, said in {
        "adam": "another optimiser",
        "float32": "is float32 4 and not float64 4",
        "hosts": "other hosts",
        "layers": "other layers",
        "text": "not a saved backend",
        "absent": "not a saved backend",
    }.items():
        with pytest.raises(HsflError, match=said):
            backend.load(tmp_path / name)
        assert (backend.cuts, backend.round) == ((2, 4), 1)
        assert_equal(everything(backend), before)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_takes_tensors_or_batches(kind: str) -> None:
    backend = make(kind)
    for _ in range(2):
        backend.train_round()
    torch.manual_seed(2)
    inputs, targets = torch.randn(11, 2, 6, 6, dtype=torch.float64), torch.randint(0, CLASSES, (11,))
    whole = backend.evaluate((inputs, targets))
    batches = zip(inputs.split([3, 7, 1]), targets.split([3, 7, 1]), strict=True)
    for found in (backend.evaluate(batches), backend.evaluate((inputs, targets), batch_size=2)):
        assert found == pytest.approx(whole, rel=1e-12)
    model = nn.Sequential(*layers("batch", 0.2)).eval()  # batch norm with the averaged running statistics
    model.load_state_dict(backend.global_state())
    loss = nn.functional.cross_entropy(model(inputs), targets)
    assert whole["loss"] == pytest.approx(loss.item(), rel=1e-12)
    backend.train_round()
    assert backend.evaluate((inputs, targets))["loss"] != whole["loss"]
    with pytest.raises(HsflError, match="no samples"):
        backend.evaluate([])


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_stay(kind: str) -> None:
    model = layers()
    model[1][0].weight.requires_grad_(False)
    backend = hsfl.backend(kind, model, HOSTS, (1, 3), OPTIMIZERS["momentum"], dtype=torch.float64)
    backend.step(*batch(np.random.default_rng(0), 4))
    assert torch.equal(backend.client_state(0)["1.0.weight"], model[1][0].weight)
    assert not torch.equal(backend.client_state(0)["1.0.bias"], model[1][0].bias)


def test_bfloat16_with_batch_norm_is_close() -> None:
    inputs, targets = batch(np.random.default_rng(0), 4)
    losses = [
        make(kind, norm="batch", dtype=torch.float32, precision=precision).step(inputs.float(), targets)
        for kind, precision in (("reference", "fp32"), ("reference", "bf16"), ("stacked", "bf16"))
    ]
    assert all(loss.dtype == torch.float32 for loss in losses)
    torch.testing.assert_close(losses[0], losses[1], rtol=0.05, atol=0.02)
    torch.testing.assert_close(losses[0], losses[2], rtol=0.05, atol=0.02)


def test_precision_does_not_leak() -> None:
    """The switches are the process's: on within, and afterwards as they were, however they had been set."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def switches() -> list[object]:
        return [matmul.allow_tf32, cudnn.allow_tf32, matmul.fp32_precision, cudnn.conv.fp32_precision]

    device = torch.device("cuda")
    for prepare in (lambda: None, lambda: setattr(matmul, "allow_tf32", True)):
        prepare()
        before = switches()
        for precision in ("fp32", "tf32", "bf16"):
            with arithmetic(device, precision):
                assert matmul.allow_tf32 == cudnn.allow_tf32 == (precision == "tf32")
            assert switches() == before
        with pytest.raises(KeyError), arithmetic(device, "tf32"):
            raise KeyError
        assert switches() == before
    matmul.allow_tf32 = False


# --- CUDA ------------------------------------------------------------------------------------------------------------


def largest_difference(device: str) -> dict[str, float]:
    """Of losses and state, on random trees with moves and averages: `device` against the reference on the CPU."""
    found: dict[str, float] = {}
    cases = [
        ("momentum", "none", 0.0, "plain"),
        ("sgd", "group", 0.3, "plain"),
        ("momentum", "batch", 0.3, "plain"),
        ("adam", "batch", 0.0, "plain"),
        ("adamw", "group", 0.2, "plain"),
        ("momentum", "batch", 0.2, "corrected"),
        ("sgd", "group", 0.0, "corrected"),
    ]
    # In float32 a value may lie on either side of a step of a code, so coded links are compared in float64.
    for (dtype, code), (seed, (rule, norm, dropout, averaging)) in itertools.product(
        ((torch.float64, "fp32"), (torch.float64, "int4"), (torch.float32, "fp32")), enumerate(cases)
    ):
        rng = np.random.default_rng(seed)
        tiers, clients = int(rng.integers(2, 5)), int(rng.integers(4, 8))
        hosts = random_hosts(rng, tiers, clients, single_top=bool(seed % 2))
        cuts = [sorted(map(int, rng.integers(1, 6, tiers - 1))) for _ in range(3)]
        common = {"cuts": cuts[0], "hosts": hosts, "rule": rule, "norm": norm, "dropout": dropout, "dtype": dtype}
        common["averaging"] = averaging
        common["codes"] = code
        both = [make("reference", **common), make("stacked", **common, device=device)]
        worst = 0.0
        for t in range(6):
            losses = [backend.train_round() for backend in both]
            for backend in both:
                if t in (2, 4):
                    backend.move(cuts[t // 2])
                if t % 2:
                    backend.average(t % tiers)
            states = [everything(backend) for backend in both]
            pairs = [(losses[0], losses[1]), *((value, states[1][key]) for key, value in states[0].items())]
            worst = max(worst, *(float((a.cpu() - b.cpu()).abs().max()) for a, b in pairs))
        links = f"links {code}, {averaging} averages"
        found[f"{str(dtype).removeprefix('torch.')}, {links}, {rule}, norm {norm}, dropout {dropout}"] = worst
    return found


@cuda
def test_captured_rounds_equal_the_reference() -> None:
    for case, worst in largest_difference("cuda").items():
        assert worst < (1e-9 if case.startswith("float64") else 1e-2), case


@cuda
@pytest.mark.parametrize(("rule", "averaging"), [("momentum", "plain"), ("adam", "plain"), ("momentum", "corrected")])
def test_recording_trains_nothing(rule: str, averaging: str) -> None:
    """Captured and eager rounds are the same to the bit where kernels are; recording again changes nothing."""
    data = Resident("cuda")
    torch.backends.cudnn.deterministic = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            codes = [{"up": "int4", "down": "int8", "average": "int8"}, {"up": "bf16", "average": "int4"}, "fp32"]
            given: dict[str, Any] = {"rule": rule, "averaging": averaging, "device": "cuda", "codes": codes}
            captured, eager = (make(**given, capture=c) for c in (None, False))
            for t, draw in enumerate(data.drawn):
                if t == 3:
                    captured._recorded.clear()
                state, clock = everything(captured), int(captured._clock)
                losses = captured.step(*data.batch(draw)) if t % 2 else captured.train_round()
                assert clock == t and state.keys()
                torch.testing.assert_close(losses, eager.train_round(), rtol=0, atol=1e-12)
                for backend in (captured, eager):
                    backend.average(t % 2)  # what averages keep is read and written between recorded rounds
        assert captured._recorded and not eager._recorded
        for key, value in everything(captured).items():
            torch.testing.assert_close(value, everything(eager)[key], rtol=0, atol=1e-12)
    finally:
        torch.backends.cudnn.deterministic = False


@cuda
def test_recorded_rounds_read_the_step_of_the_moment_and_clip() -> None:
    """float32, where the learning rate is on the device: as eager rounds, without waiting for it."""
    settings = {"clip": 0.5, "schedule": lambda round_: 1.0 / (1 + round_)}
    data, torch.backends.cudnn.deterministic = Resident("cuda"), True
    try:
        rule = OPTIMIZERS["momentum"] | settings
        captured, eager = (
            hsfl.backend("stacked", layers("batch"), HOSTS, (1, 3), rule, data=data, device="cuda", capture=c)
            for c in (None, False)
        )
        captured.train_round(), eager.train_round()  # records
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(4):
            captured.train_round()
        torch.cuda.set_sync_debug_mode("default")
        for _ in range(4):
            eager.train_round()
        assert captured._recorded
        for key, value in everything(captured).items():
            torch.testing.assert_close(value, everything(eager)[key], rtol=0, atol=1e-5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.backends.cudnn.deterministic = False


@cuda
def test_a_coded_average_waits_for_nothing_and_can_be_asked_later() -> None:
    backend = make(device="cuda", codes="int8")
    backend.train_round()
    backend._held(1, 1)[0]["2.0.weight"][0, 0, 0, 0] = float("nan")
    torch.cuda.set_sync_debug_mode("error")
    try:
        backend.average(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(DivergedError, match="layer 3 of client 3 has weights that are not finite"):
        backend.check_sent()


@cuda
def test_warm_up_is_undone_to_the_bit() -> None:
    from hsfl.engine.capture import CapturedRound, Lanes

    backend = make(device="cuda")
    backend.train_round()
    before, random = everything(backend), torch.cuda.get_rng_state()
    clock = backend._clock.clone()
    _, party = backend._party
    state = [backend._clock, party.keys, *(t for tier in backend._tiers for t in tier.state())]
    draw = backend.data.drawn[1]
    CapturedRound(lambda d: backend._work_from(party, d, Lanes(d.device, streams=True)), [draw], state, backend.device)
    assert_equal(everything(backend), before)
    assert torch.equal(backend._clock, clock) and torch.equal(torch.cuda.get_rng_state(), random)


@cuda
def test_what_cannot_be_captured_runs_eagerly() -> None:
    class Waits(Resident):
        def batch(self, draw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            assert float(draw.sum().item()) >= 0
            return super().batch(draw)

    one, other = make(device="cuda", data=Waits("cuda")), make(device="cuda", capture=False)
    with pytest.warns(UserWarning, match="cannot be captured"):
        first = one.train_round()
    torch.testing.assert_close(first, other.train_round(), rtol=0, atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            torch.testing.assert_close(one.train_round(), other.train_round(), rtol=0, atol=1e-12)


@cuda
def test_losses_are_a_tensor_of_their_own() -> None:
    backend = make(device="cuda")
    first = backend.train_round()
    kept = first.clone()
    backend.train_round()
    assert torch.equal(first, kept)


@cuda
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_probe_is_recorded_where_nothing_is_left_to_chance(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from hsfl.engine.capture import CapturedRound

    class Probed(Resident):
        def samples(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.images[indices], self.labels[indices]

        def probe_draws(self, round_: int, batches: int, clients: None = None) -> torch.Tensor:
            return torch.arange(4 * batches * 5, device="cuda").view(4, batches, 5) % 50

    replay, replayed = CapturedRound.__call__, []
    monkeypatch.setattr(CapturedRound, "__call__", lambda self, *given: replayed.append(1) or replay(self, *given))
    found = []
    for capture in (None, False):
        backend = make(device="cuda", dropout=dropout, data=Probed("cuda"), capture=capture)
        backend.train_round()
        replayed.clear()
        found.append(backend.probe(3, 0.1))
        assert len(replayed) == (12 if capture is None and not dropout else 0)
    for name, value in vars(found[0]).items():
        if value is not None:
            np.testing.assert_allclose(value, getattr(found[1], name), rtol=1e-9, atol=1e-12, err_msg=name)
