"""Codes that change while training: both backends, what is kept, the clock; and the noise of codes as measured."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import hsfl
from hsfl.engine.links import CODECS, CodedCut, links
from hsfl.engine.losses import cross_entropy
from hsfl.engine.probe import coding_noise, rounds_of_coding
from hsfl.engine.virtual_model import VirtualModel
from hsfl.errors import HsflError, ScenarioError
from hsfl.models import build, chain
from hsfl.problem.codes import CODES, LinkCodes, tier_codes
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.system import System
from tests.engine.task import BATCH, Given, algorithm, blobs, layers, small_problem
from tests.engine.test_speed_paths import HOSTS, KINDS, assert_equal, cuda, everything, make

PLANNED = [tier_codes("auto", "code", top=m == 2, entities=len(set(row))) for m, row in enumerate(HOSTS)]


def chosen(*names: tuple[str, str, str], planned: list[LinkCodes] = PLANNED) -> list[LinkCodes]:
    """Codes of the two lower tiers by name: up, down, average."""
    given = [dict(zip(("up", "down", "average"), own, strict=True)) for own in names] + [{}]
    return [own.using({link: CODES[code] for link, code in g.items()}) for own, g in zip(planned, given, strict=True)]


INT4 = chosen(("int4", "int4", "int4"), ("int4", "int8", "int4"))
MIXED = chosen(("int8", "bf16", "fp32"), ("fp32", "int4", "int8"))


def trained(backend, codes: list[list[LinkCodes]], rounds: int = 6):
    """A few rounds with averages, moves, and other codes every other round."""
    for t in range(rounds):
        if t % 2 == 0:
            backend.recode(codes[(t // 2) % len(codes)])
        backend.train_round()
        backend.average(t % 2)
        if t == 3:
            backend.move((2, 4))
    return backend


def test_backends_agree_while_codes_change() -> None:
    """To the bit that float64 leaves: codes round in float32, on the same numbers but for their last digits."""
    reference, stacked = (trained(make(kind, codes=PLANNED, dropout=0.0), [INT4, MIXED]) for kind in KINDS)
    ours, theirs = everything(reference), everything(stacked)
    assert ours.keys() == theirs.keys() and any(key.startswith("unsent") for key in ours)
    for key, value in ours.items():
        torch.testing.assert_close(value, theirs[key], rtol=0, atol=1e-6, msg=lambda text, k=key: f"{k}: {text}")


@pytest.mark.parametrize("kind", KINDS)
def test_codes_of_the_moment_are_those_of_a_backend_made_with_them(kind: str) -> None:
    """Where nothing is averaged, and where the codes of averages are the same."""
    changed, made = make(kind, codes=PLANNED), make(kind, codes=INT4)
    assert changed.recode(INT4) and not changed.recode(INT4)
    for backend in (changed, made):
        for _ in range(3):
            backend.train_round()
        backend.average(0)
    assert_equal(everything(changed), everything(made))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_left_unsent_is_sent_in_the_next_code(kind: str) -> None:
    """After an average in fp32 nothing is left: all that int4 had kept back arrives."""
    backend = make(kind, codes=PLANNED, norm="none", dropout=0.0)
    backend.recode(INT4)
    backend.train_round()
    backend.average(0)
    left = {key: value for key, value in everything(backend).items() if "unsent" in key}
    assert max(float(value.abs().max()) for value in left.values()) > 0
    meant = everything(backend)
    mean = torch.stack([meant[f"state.0.{n}.0.0.weight"] + meant[f"slot.0.{n}.unsent.0.0.weight"] for n in range(4)])
    wanted = mean.mean(0) + meant["unsent.0.0.0.weight"]
    backend.recode(PLANNED)
    backend.average(0)
    after = everything(backend)
    torch.testing.assert_close(after["state.0.0.0.0.weight"], wanted, rtol=0, atol=1e-12)
    assert all(float(after[key].abs().max()) < 1e-12 for key in left if key.split(".")[1] == "0")


@pytest.mark.parametrize(("kind", "other"), list(itertools.product(KINDS, KINDS)))
def test_files_go_on_in_the_codes_of_the_moment(kind: str, other: str, tmp_path) -> None:
    saved, resumed = trained(make(kind, codes=PLANNED), [INT4, MIXED], 4), make(other, codes=PLANNED)
    saved.save(tmp_path / "file")
    resumed.load(tmp_path / "file")
    assert_equal(everything(saved), everything(resumed))
    for backend in (saved, resumed) if kind == other else ():
        backend.recode(MIXED)
        backend.train_round()
        backend.average(1)
    assert_equal(everything(saved), everything(resumed))


def test_averages_that_were_never_to_be_coded_cannot_become_so() -> None:
    with pytest.raises(HsflError, match="whether averages are coded cannot change"):
        make(codes="fp32").recode([LinkCodes(average=CODES["int8"]), LinkCodes(), LinkCodes()])


@pytest.mark.parametrize("codes", ["auto", [["int8", "int4"], "fp32", "fp32"], [{"up": "auto"}, "fp32", "fp32"]])
def test_a_backend_does_not_choose(codes: object) -> None:
    with pytest.raises(ScenarioError, match=r"codes.* = .*: a backend runs codes and does not choose them; name one"):
        make(codes=codes)


@cuda
def test_captured_rounds_are_captured_again_in_other_codes() -> None:
    captured, eager = (trained(make(codes=PLANNED, device="cuda", capture=c), [INT4, MIXED]) for c in (None, False))
    assert captured._recorded and not eager._recorded
    for key, value in everything(captured).items():
        torch.testing.assert_close(value, everything(eager)[key], rtol=0, atol=1e-9)


# --- while training ---


def planned_problem() -> tuple[Problem, list[LinkCodes]]:
    problem = small_problem()
    own = [tier_codes("auto", "code", top=m == 2, entities=t.entities) for m, t in enumerate(problem.system.tiers)]
    tiers = tuple(replace(tier, codes=codes) for tier, codes in zip(problem.system.tiers, own, strict=True))
    return replace(problem, system=System(tiers)), own


def switching() -> tuple[Problem, Given]:
    problem, own = planned_problem()
    averaged = [own[1].allowed("average")[-1].name, "int8"]  # the middle tier may be one machine
    one = chosen(("int4", "int8", "int4"), ("bf16", "int4", averaged[0]), planned=own)
    two = chosen(("fp32", "int4", "int8"), ("int8", "fp32", "fp32"), planned=own)
    return problem, Given([Plan((1, 2), (2, 2, 1), tuple(one)), Plan((1, 3), (2, 1, 1), tuple(two))])


def test_clock_traffic_and_records_follow_the_codes_of_the_plan() -> None:
    problem, strategy = switching()
    run = algorithm(strategy, problem=problem, codes=[t.codes for t in problem.system.tiers], replan_every=4)
    before, seen = {}, []
    for record in run.advance(12):
        if hasattr(record, "codes"):
            assert record.codes == strategy.plans[min(len(seen), 1)].code_names() and record.codes[0]["up"] != "bf16"
            seen.append(record)
            # Moves and probes are charged with the plan: only the rounds after it are counted here.
            before = dict(run.clock.bits)
            continue
        plan = strategy.plans[min(len(seen), 2) - 1]
        for m, cut in enumerate(plan.cuts):
            name = problem.system.tiers[m].name
            held = problem.profile.activation_bits[[cut - 1]]
            bits = problem.system.num_clients * BATCH * plan.codes[m].up.crossing_bits(held)[0]
            assert run.clock.bits[f"{name}.up"] - before[f"{name}.up"] == pytest.approx(round(bits), abs=1)
        before = dict(run.clock.bits)
        assert [link.up.code for link in run.backend.links[:2]] == [codes.up for codes in plan.codes[:2]]
    assert len(seen) == 3
    asked = [p.constants.coding_noise for _, p in strategy.asked]
    assert all(noise is not None and noise.shape == (2, len(CODES), 4) for noise in asked)


@pytest.mark.parametrize("backend", KINDS)
def test_a_restored_algorithm_goes_on_in_its_codes(backend: str, tmp_path) -> None:
    def begun():
        problem, strategy = switching()
        codes = [t.codes for t in problem.system.tiers]
        return algorithm(strategy, problem=problem, codes=codes, replan_every=4, backend=backend)

    whole = begun()
    expected = list(whole.advance(12))
    first = begun()
    begin = list(first.advance(6))
    first.backend.save(tmp_path / "tensors")
    state = first.state().model_copy()
    second = begun()
    second.task.strategy.asked.extend(first.task.strategy.asked)
    second.backend.load(tmp_path / "tensors")
    second.restore(type(state).model_validate_json(state.model_dump_json()))
    assert second.schedule.plan == first.schedule.plan and second.backend.links == first.backend.links
    assert [tier.codes for tier in second.problem.system.tiers] == list(second.schedule.plan.codes)
    assert [*begin, *second.advance(6)] == expected
    assert_equal(everything(whole.backend), everything(second.backend))


def test_a_strategy_may_name_codes_and_no_more() -> None:
    """What may be chosen later stays what it is."""
    problem, _ = switching()
    bare = (LinkCodes(up=CODES["int4"], average=CODES["int8"]), LinkCodes(), LinkCodes())
    run = algorithm(
        Given([Plan((1, 2), (1, 1, 1), bare)]), problem=problem, codes=[t.codes for t in problem.system.tiers]
    )
    list(run.advance(2))
    device = run.problem.system.tiers[0].codes
    assert device.up.name == "int4" and device.planned == problem.system.tiers[0].codes.planned


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ((LinkCodes(), LinkCodes()), "3 hsfl.problem.codes.LinkCodes are needed"),
        (tuple(LinkCodes(up=CODES["int8"]) for _ in range(3)), "are none of those that tiers.tier3.code allows"),
        ("int4", "are none of those"),
    ],
)
def test_codes_of_a_strategy_that_the_machines_do_not_allow(codes: object, said: str) -> None:
    problem, _ = switching()
    wrong = Given([Plan((1, 2), (1, 1, 1), codes)])  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match=f"strategy given: codes.*{said}"):
        list(algorithm(wrong, problem=problem, codes=[t.codes for t in problem.system.tiers]).advance(1))


# --- the noise of codes ---


def virtual(seed: int = 0) -> tuple[VirtualModel, torch.Tensor]:
    data, parts = blobs(True)
    inputs, targets = data.train
    model = VirtualModel(
        layers(),
        torch.nn.ModuleList(layers()).state_dict(),
        lambda i: (inputs[i].float(), targets[i]),
        cross_entropy,
        0,
        torch.device("cpu"),
        "fp32",
    )
    rng = np.random.default_rng(seed)
    return model, torch.from_numpy(np.stack([rng.choice(part, (2, BATCH)) for part in parts]))


@pytest.mark.parametrize("link", ["up", "down"])
def test_noise_is_what_coding_does_to_a_round(link: str) -> None:
    """The probe's difference of gradients is that of two backends' steps, with the link coded and without."""
    model, indices = virtual()
    clean = model.gradient(0, indices[0, 0])[1]
    both = [CODECS["int4"], CODECS["fp32"]]
    coded = model.gradient(0, indices[0, 0], coded=CodedCut(2, *(both if link == "up" else both[::-1])))[1]
    inputs, targets = model.samples(indices[0, 0])
    weights = []
    for codes in ("fp32", {link: "int4"}):
        backend = hsfl.backend(
            "reference", layers(), [[0], [0]], (2,), {"name": "sgd", "lr": 1.0}, codes=[codes, "fp32"]
        )
        backend.step(inputs[None], targets[None])
        weights.append(torch.cat([v.flatten() for v in backend.client_state(0).values()]))
    by_probe = torch.cat([(a - b).flatten() for a, b in zip(clean, coded, strict=True)])
    assert float(by_probe.norm()) > 0
    torch.testing.assert_close(weights[1] - weights[0], by_probe, rtol=0, atol=1e-6)


def test_codes_that_are_not_measured_follow_from_those_that_are() -> None:
    """Gradients: to a factor of 2 at every cut between layers of LeNet-5. Activations: a single unit that flips decides
    what the codes of many bits add at a cut, so there only over all cuts, and to a factor of 3."""
    torch.manual_seed(0)
    images, labels = torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))
    net = list(chain(build("lenet5", (1, 28, 28)), images[:2]))
    state, loss = torch.nn.ModuleList(net).state_dict(), cross_entropy
    model = VirtualModel(net, state, lambda i: (images[i], labels[i]), loss, 0, torch.device("cpu"), "fp32")
    names, indices = list(CODES), torch.arange(16)[None, None]
    found = coding_noise(model, [0], indices)[..., :-1]
    measured = coding_noise(model, [0], indices, (names[1:], names[1:]))[..., :-1]
    bf16, int8, int4 = (names.index(code) for code in ("bf16", "int8", "int4"))
    np.testing.assert_allclose(found[0, [int8, int4]], measured[0, [int8, int4]])
    ratio = found[1] / np.where(measured[1] > 0, measured[1], 1.0)
    assert (ratio[[bf16, int8]] > 0.5).all() and (ratio[[bf16, int8]] < 2).all()
    assert 1 / 3 < found[0, bf16].sum() / measured[0, bf16].sum() < 3
    assert 1 / 3 < CODES["int8"].noise[0] * measured[0, int4].sum() / measured[0, int8].sum() < 3
    assert not found[:, names.index("fp32")].any() and (found[:, int4] > 0).all()


def test_gradients_coming_down_change_layers_below_the_cut_only() -> None:
    model, indices = virtual()
    clean = model.gradient(0, indices[0, 0])[1]
    coded = model.gradient(0, indices[0, 0], coded=CodedCut(2, CODECS["fp32"], CODECS["int4"]))[1]
    changed = model.squares([a - b for a, b in zip(clean, coded, strict=True)])
    assert (changed[:2] > 0).all() and not changed[2:].any()


@pytest.mark.parametrize(("num_layers", "clients", "rounds"), [(16, 20, 6), (4, 100, 2), (5, 1, 31)])
def test_what_a_probe_of_codes_is_charged(num_layers: int, clients: int, rounds: int) -> None:
    assert rounds_of_coding(num_layers, clients) == rounds


def test_links_know_whether_averages_may_be_coded() -> None:
    topology = make().topology
    assert [link.codes_averages for link in links(PLANNED, topology)] == [True, True, False]
    assert [link.codes_averages for link in links("fp32", topology)] == [False] * 3
