"""Scenarios: what a file says becomes exactly these machines, this model and these constants."""

from __future__ import annotations

import numpy as np
import pytest

import hsfl
from hsfl.problem.profile import LayerProfile
from hsfl.scenario.catalog import CATALOG
from tests.scenario.scenarios import ABSENT, SMALL, changed, load, write

LENET = CATALOG / "profiles" / "lenet5-1x28x28.csv"
HEADER = "name,forward_flops,backward_flops,activation_bits,gradient_bits,parameter_bits,optimizer_bits"


# --- built-in scenarios ---


@pytest.mark.parametrize("name", hsfl.scenario_names())
def test_built_in_scenario_loads(name):
    scenario = hsfl.load_scenario(name)
    assert scenario.name == name
    problem = scenario.problem
    assert problem.system.entities == tuple(t["entities"] for t in scenario.raw["tiers"])
    assert problem.num_layers >= problem.system.num_tiers
    assert np.isfinite(problem.constants.target) and problem.constants.target > 0


def test_there_are_the_documented_scenarios():
    assert set(hsfl.scenario_names()) >= {"paper", "paper-mnist", "client-edge", "client-cloud", "four-tier", "city"}


def test_the_papers_numbers():
    system = hsfl.load_scenario("paper").problem.system
    assert system.entities == (20, 5, 1)
    device, edge, cloud = system.tiers
    assert 4e11 <= device.compute_flops.min() < device.compute_flops.max() <= 6e11
    assert set(edge.compute_flops) == {5e12} and set(cloud.compute_flops) == {5e13}
    assert 7.5e7 <= device.uplink_bps.min() < device.uplink_bps.max() <= 8e7
    assert set(device.downlink_bps) == {3.7e8}
    assert 3.7e8 <= edge.uplink_bps.min() < edge.uplink_bps.max() <= 4e8


def test_a_file_goes_before_a_built_in_scenario_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, changed({"name": "mine"}), "paper")
    assert hsfl.load_scenario("paper").name == "mine"
    assert hsfl.load_scenario("city").name == "city"


# --- who hosts whom ---


@pytest.mark.parametrize(
    ("devices", "edges", "parents"),
    [
        (6, 2, [0, 0, 0, 1, 1, 1]),
        (7, 3, [0, 0, 0, 1, 1, 2, 2]),
        (5, 5, [0, 1, 2, 3, 4]),
        (4, 1, [0, 0, 0, 0]),
    ],
)
def test_parents_are_even_and_contiguous_by_default(tmp_path, devices, edges, parents):
    system = load(tmp_path, {"tiers.0.entities": devices, "tiers.1.entities": edges}).system
    assert system.tiers[0].parents.tolist() == parents


def test_default_parents_differ_by_at_most_one_client(tmp_path):
    for devices, edges in [(100, 7), (31, 30), (17, 4), (1000, 37)]:
        system = load(tmp_path, {"tiers.0.entities": devices, "tiers.1.entities": edges}).system
        parents, counts = system.tiers[0].parents, system.clients_per_entity[1]
        assert (np.diff(parents) >= 0).all() and set(parents) == set(range(edges))
        assert counts.sum() == devices and counts.max() - counts.min() <= 1


def test_given_parents_decide_the_hosts(tmp_path):
    four_tiers = {
        "tiers": [
            {**SMALL["tiers"][0], "entities": 5, "parents": [2, 0, 1, 2, 2]},
            {**SMALL["tiers"][1], "entities": 3, "parents": [1, 1, 0]},
            {**SMALL["tiers"][1], "entities": 2, "name": "region"},
            SMALL["tiers"][2],
        ]
    }
    system = load(tmp_path, four_tiers).system
    assert [h.tolist() for h in system.hosts] == [[0, 1, 2, 3, 4], [2, 0, 1, 2, 2], [0, 1, 1, 0, 0], [0] * 5]
    assert [c.tolist() for c in system.clients_per_entity] == [[1] * 5, [1, 1, 3], [3, 2], [5]]


# --- shares ---


RAGGED = {
    "tiers": [
        {
            "name": "device",
            "entities": 3,
            "compute": [1.0, 2.0, 4.0],
            "memory": [80.0, 90.0, 100.0],
            "uplink": [10.0, 20.0, 40.0],
            "downlink": 5.0,
            "fed_uplink": [2.0, 4.0, 8.0],
            "fed_downlink": [50.0, 25.0, 100.0],
            "parents": [1, 0, 1],
        },
        {
            "name": "edge",
            "entities": 2,
            "compute": [100.0, 400.0],
            "memory": [90.0, 160.0],
            "uplink": [50.0, 80.0],
            "downlink": [16.0, 64.0],
            "fed_uplink": 10.0,
            "fed_downlink": [20.0, 40.0],
        },
        {"name": "cloud", "entities": 1, "compute": 3000.0, "memory": 600.0, "fed_uplink": 1.0, "fed_downlink": 1.0},
    ]
}


def test_slowness_of_a_ragged_system_by_hand(tmp_path):
    """Edge 1 hosts client 2 alone; edge 2 hosts clients 1 and 3, each with half of it; the cloud hosts all three."""
    system = load(tmp_path, RAGGED).system
    assert system.slowness == pytest.approx(
        np.array(
            [
                [1 / 1, 1 / 2, 1 / 4],  # FLOPs on the device
                [2 / 400, 1 / 100, 2 / 400],  # on the edge
                [3 / 3000] * 3,  # in the cloud
                [1 / 10, 1 / 20, 1 / 40],  # bits up from the device
                [2 / 80, 1 / 50, 2 / 80],  # up from the edge, whose link its clients share
                [1 / 5] * 3,  # down to the device
                [2 / 64, 1 / 16, 2 / 64],  # down to the edge
            ]
        ),
        rel=1e-15,
    )


def test_fed_links_are_not_shared_and_the_slowest_decides(tmp_path):
    system = load(tmp_path, RAGGED).system
    assert system.fed_seconds_per_bit == pytest.approx([1 / 2 + 1 / 25, 1 / 10 + 1 / 20, 0.0])


def test_memory_is_shared_by_the_hosted_clients(tmp_path):
    system = load(tmp_path, RAGGED).system
    assert system.memory_per_client_bits.tolist() == [80.0, 80.0, 200.0]
    assert np.isinf(load(tmp_path).system.memory_per_client_bits).all()


def test_lists_hold_one_value_per_entity_in_order(tmp_path):
    rates = ["1 Mbps", 2e6, "3 Mbps", "4 Mbps", 5000000, "6000 kbps"]
    tier = load(tmp_path, {"tiers.0.uplink": rates}).system.tiers[0]
    assert tier.uplink_bps.tolist() == [1e6, 2e6, 3e6, 4e6, 5e6, 6e6]


# --- draws ---

DRAWN = {
    "tiers.0.compute": {"uniform": ["1 GFLOPS", "2 GFLOPS"]},
    "tiers.0.memory": {"normal": ["8 GB", "3 GB"]},
    "tiers.0.uplink": {"lognormal": ["10 Mbps", 0.3]},
    "tiers.0.fed_uplink": {"uniform": [1e6, 3e6]},
    "tiers.1.compute": {"uniform": ["1 GFLOPS", "2 GFLOPS"]},
}


def drawn(scenario: hsfl.Scenario) -> dict[str, list[float]]:
    device, edge, _ = scenario.system.tiers
    return {
        "compute": device.compute_flops.tolist(),
        "memory": device.memory_bits.tolist(),
        "uplink": device.uplink_bps.tolist(),
        "fed_uplink": device.fed_uplink_bps.tolist(),
        "edge": edge.compute_flops.tolist(),
    }


def test_draws_are_in_range_and_differ(tmp_path):
    values = drawn(load(tmp_path, DRAWN))
    assert all(1e9 <= v <= 2e9 for v in values["compute"] + values["edge"])
    assert all(1e6 <= v <= 3e6 for v in values["fed_uplink"])
    assert all(v > 0 for v in values["memory"] + values["uplink"])
    assert all(len(set(v)) == len(v) for v in values.values())
    assert not set(values["compute"]) & set(values["edge"]), "two tiers share a stream"
    scaled = {(v - 1e6) / 2e6 for v in values["fed_uplink"]} & {(v - 1e9) / 1e9 for v in values["compute"]}
    assert not scaled, "two fields share a stream"


def test_draws_come_from_the_seed_alone(tmp_path):
    first = drawn(load(tmp_path, DRAWN))
    assert drawn(load(tmp_path, DRAWN)) == first
    other = drawn(load(tmp_path, DRAWN | {"seed": 4}))
    assert all(not set(first[k]) & set(other[k]) for k in first)


@pytest.mark.parametrize(
    "change",
    [
        {"tiers.0.downlink": {"uniform": [1e6, 2e6]}},
        {"tiers.0.fed_downlink": [1e6] * 6},
        {"tiers.1.entities": 3},
        {"tiers.1.uplink": {"normal": [1e6, 1e6]}},
        {"tiers.0.name": "phone"},
        {"tiers.0.parents": [0, 1, 0, 1, 0, 1]},
        {"training.batch_size": 64},
        {"training.optimizer": "adam"},
        {"name": "other", "description": "else"},
        {"convergence.slack": 0.1},
        {"model.name": "resnet18"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_draws_do_not_move_with_other_fields(tmp_path, change):
    before, after = drawn(load(tmp_path, DRAWN)), drawn(load(tmp_path, DRAWN | change))
    if "tiers.1.entities" in change:
        after["edge"] = after["edge"][:2]
    assert after == before


def test_the_draw_of_one_field_does_not_move_with_the_range_of_another(tmp_path):
    before = drawn(load(tmp_path, DRAWN))
    for field in ("tiers.0.compute", "tiers.0.uplink", "tiers.0.fed_uplink"):
        after = drawn(load(tmp_path, DRAWN | {field: 12345.0}))
        key = field.rpartition(".")[2]
        assert after.pop(key) == [12345.0] * 6
        assert after == {k: v for k, v in before.items() if k != key}


@pytest.mark.parametrize("field", ["compute", "uplink", "fed_uplink"])
def test_a_longer_tier_starts_with_the_shorter_one(tmp_path, field):
    short, long = load(tmp_path, DRAWN), load(tmp_path, DRAWN | {"tiers.0.entities": 40})
    assert drawn(long)[field][:6] == drawn(short)[field]


# --- convergence ---


def test_rounds_set_the_target_by_the_bound(tmp_path):
    variance = [0.5, 1.0, 2.0, 0.25, 0.25]
    given = {"convergence.gradient_variance": variance, "convergence.rounds": 400}
    for slack in (0.0, 0.25, 3.0):
        constants = load(tmp_path, given | {"convergence.slack": slack}).problem.constants
        expected = (2 * 2.3 / (0.01 * 400) + 7.8 * 0.01 * sum(variance) / 6) * (1 + slack)
        assert constants.target == pytest.approx(expected, rel=1e-14)
    assert load(tmp_path, given | {"convergence.slack": ABSENT}).problem.constants.target == pytest.approx(
        2 * 2.3 / (0.01 * 400) + 7.8 * 0.01 * sum(variance) / 6, rel=1e-14
    )


@pytest.mark.parametrize("rounds", [1, 2, 7, 500, 12345, 10**6])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_without_slack_full_synchronisation_needs_exactly_these_rounds(tmp_path, rounds, optimizer):
    changes = {"convergence.rounds": rounds, "convergence.slack": 0.0, "training.optimizer": optimizer}
    scenario = load(tmp_path, changes)
    assert hsfl.evaluate(scenario, [1, 3], [1, 1, 1]).rounds == rounds


def test_a_target_is_taken_as_it_is(tmp_path):
    changes = {"convergence.target": 0.75, "convergence.rounds": ABSENT, "convergence.slack": ABSENT}
    assert load(tmp_path, changes).problem.constants.target == 0.75


def test_the_profiles_columns_are_used_when_the_file_has_no_lists(tmp_path):
    shipped = LayerProfile.from_csv(LENET)
    constants = load(tmp_path).problem.constants
    assert constants.gradient_variance.tolist() == shipped.gradient_variance.tolist()
    assert constants.gradient_second_moment.tolist() == shipped.gradient_second_moment.tolist()
    lists = {
        "convergence.gradient_variance": [1, 2, 3, 4, 5],
        "convergence.gradient_second_moment": [5.0, 4.0, 3.0, 2.0, 1.0],
    }
    constants = load(tmp_path, lists).problem.constants
    assert constants.gradient_variance.tolist() == [1, 2, 3, 4, 5]
    assert constants.gradient_second_moment.tolist() == [5, 4, 3, 2, 1]


def test_dissimilarity_from_clients_shrinks_with_random_grouping(tmp_path):
    zeta = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = load(tmp_path, {"convergence.gradient_dissimilarity": zeta.tolist()}).problem.constants
    assert found.gradient_dissimilarity == pytest.approx(np.array([zeta, zeta * (2 - 1) / (6 - 1), 0 * zeta]))
    shipped = LayerProfile.from_csv(LENET).gradient_dissimilarity
    found = load(tmp_path).problem.constants.gradient_dissimilarity
    assert found == pytest.approx(np.array([shipped, shipped / 5, 0 * shipped]))


def test_dissimilarity_per_tier_is_taken_as_it_is(tmp_path):
    given = [[1.0, 2.0, 3.0, 4.0, 5.0], [0.5] * 5, [0.25] * 5]
    found = load(tmp_path, {"convergence.gradient_dissimilarity": given}).problem.constants
    assert found.gradient_dissimilarity.tolist() == given


def test_each_drift_model_needs_only_its_own_statistics(tmp_path):
    (tmp_path / "bare.csv").write_text(
        HEADER + ",gradient_variance\n" + "".join(f"layer{i},9,9,9,9,9,0,0.1\n" for i in range(4))
    )
    bare = {"model": {"profile": "bare.csv"}}
    refined = bare | {"convergence.drift": "refined"}
    moment, zeta = "convergence.gradient_second_moment", "convergence.gradient_dissimilarity"
    assert load(tmp_path, bare | {moment: [1.0] * 4}).problem.constants.gradient_dissimilarity is None
    assert load(tmp_path, refined | {zeta: [1.0] * 4}).problem.constants.gradient_second_moment is None
    for changes, field in ((bare, moment), (refined, zeta)):
        with pytest.raises(hsfl.HsflError, match=f"{field} is missing.*4 numbers"):
            load(tmp_path, changes)


# --- training ---


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)])
def test_the_optimizers_state_takes_memory(tmp_path, optimizer, copies):
    problem = load(tmp_path, {"training.optimizer": optimizer}).problem
    p = problem.profile
    assert p.optimizer_bits.tolist() == (copies * p.parameter_bits).tolist()
    layers = 4 * (p.activation_bits + p.gradient_bits) + (1 + copies) * p.parameter_bits
    assert problem.client_memory_bits == pytest.approx(np.tile([0, *np.cumsum(layers)], (3, 1)))


def test_corrected_averages_take_memory_where_there_are_several_machines(tmp_path):
    """The variate and the last average: two copies of the parameters, but not on the only machine of the cloud."""
    plain, corrected = (load(tmp_path, {"training.averaging": rule}).problem for rule in ("plain", "corrected"))
    more = corrected.client_memory_bits - plain.client_memory_bits
    parameters = np.array([0, *np.cumsum(plain.profile.parameter_bits)])
    assert more == pytest.approx(np.outer([2, 2, 0], parameters))
    assert corrected.averaged_bits == pytest.approx(plain.averaged_bits)
    two = corrected.without_top_tier()
    assert (two.client_memory_bits - plain.without_top_tier().client_memory_bits)[-1] == pytest.approx(2 * parameters)


@pytest.mark.parametrize("rule", ["fedprox", "fedavgm", "fedadam"])
def test_server_rules_keep_the_last_average_on_machines(tmp_path, rule):
    """The rest is with the fed server. Plans are those of plain averages otherwise, and say so of a server's steps."""
    plain, ruled = (load(tmp_path, {"training.averaging": name}) for name in ("plain", rule))
    more = ruled.problem.client_memory_bits - plain.problem.client_memory_bits
    parameters = np.array([0, *np.cumsum(plain.profile.parameter_bits)])
    assert more == pytest.approx(np.outer([1, 1, 0], parameters))
    assert plain.caveat is None
    assert (ruled.caveat is None) == (rule == "fedprox")


def test_settings_go_with_the_rule_they_belong_to(tmp_path):
    scenario = load(tmp_path, {"training.averaging": "fedadam", "training.server": {"tau": 0.1, "betas": [0.5, 0.6]}})
    assert scenario.spec.training.averaging_settings == {"tau": 0.1, "betas": (0.5, 0.6)}
    other = scenario.with_overrides({"training.proximal": 0.5, "training.averaging": "fedprox"})
    assert other.spec.training.server is None
    assert other.spec.training.averaging_settings == {"strength": 0.5}
    averaged = other.with_overrides({"training.average_optimizer": True, "training.averaging": "fedavgm"})
    assert averaged.spec.training.averaging_settings == {"average_state": True}


def test_a_profile_that_knows_its_optimizers_state_keeps_it(tmp_path):
    rows = "".join(f"layer{i},9,9,9,9,8,{state}\n" for i, state in enumerate((3, 0, 5, 7)))
    (tmp_path / "own.csv").write_text(HEADER + "\n" + rows)
    lists = {f"convergence.gradient_{k}": [1.0] * 4 for k in ("variance", "second_moment")}
    for optimizer in ("sgd", "adam"):
        changes = {"model": {"profile": "own.csv"}, "training.optimizer": optimizer} | lists
        assert load(tmp_path, changes).problem.profile.optimizer_bits.tolist() == [3, 0, 5, 7]


def test_momentum_makes_the_effective_step_larger(tmp_path):
    assert load(tmp_path).problem.step == 0.01
    assert load(tmp_path, {"training.optimizer": "momentum"}).problem.step == pytest.approx(0.1)
    half = {"training.optimizer": "momentum", "training.momentum": 0.5}
    assert load(tmp_path, half).problem.step == pytest.approx(0.02)
    assert load(tmp_path, {"training.optimizer": "momentum", "training.momentum": 0.0}).problem.step == 0.01
    assert load(tmp_path, {"training.optimizer": "adam"}).problem.step == 0.01


# --- model ---


def test_a_profile_is_found_relative_to_the_scenario_file(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "lenet.csv").write_text(LENET.read_text())
    path = write(tmp_path / "sub", changed({"model": {"profile": "lenet.csv"}}))
    monkeypatch.chdir(tmp_path)
    by_file, by_name = hsfl.load_scenario(path), load(tmp_path)
    assert by_file.profile.forward_flops.tolist() == by_name.profile.forward_flops.tolist()
    assert hsfl.plan(by_file).objective_s == hsfl.plan(by_name).objective_s


def test_a_built_in_models_other_shape_is_measured(tmp_path):
    torch = pytest.importorskip("torch")
    assert torch is not None
    profile = load(tmp_path, {"model.input_shape": [3, 20, 20], **_lists(5)}).profile
    # conv1 of lenet5 reads 3 channels, 5x5, padded: 2 * 3 * 25 * 6 * 20 * 20 FLOPs.
    assert profile.forward_flops[0] == 2 * 3 * 25 * 6 * 20 * 20
    assert profile.gradient_variance is None


def test_a_factory_is_found_relative_to_the_scenario_file(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "scenario_factory_net.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))\n"
    )
    model = {"factory": "scenario_factory_net:build", "input_shape": [8]}
    path = write(folder, changed({"model": model, **_lists(4)}))
    monkeypatch.chdir(tmp_path)
    profile = hsfl.load_scenario(path).profile
    assert profile.forward_flops.tolist() == [2 * 8 * 8] * 4
    assert profile.parameter_bits.tolist() == [32 * (64 + 8)] * 4


def _lists(layers: int) -> dict[str, list[float]]:
    return {f"convergence.gradient_{k}": [0.1] * layers for k in ("variance", "second_moment")}


# --- overrides ---


def test_overrides_replace_fields_by_path(tmp_path):
    scenario = load(tmp_path)
    moved = scenario.with_overrides(
        {
            "seed": 9,
            "training.batch_size": 32,
            "tiers.device.uplink": "20 Mbps",
            "tiers.2.entities": 3,
            "tiers.3.compute": {"uniform": [1e12, 2e12]},
            "convergence.smoothness": 2,
        }
    )
    assert moved.raw == changed(
        {
            "seed": 9,
            "training.batch_size": 32,
            "tiers.0.uplink": "20 Mbps",
            "tiers.1.entities": 3,
            "tiers.2.compute": {"uniform": [1e12, 2e12]},
            "convergence.smoothness": 2,
        }
    )
    assert moved.problem.system.entities == (6, 3, 1)
    assert set(moved.problem.system.tiers[0].uplink_bps) == {2e7}
    assert scenario.raw == SMALL, "the scenario itself must not change"
    assert hsfl.load_scenario(tmp_path / "scenario.toml", {"seed": 9}).spec.seed == 9


def test_a_tier_called_like_a_number_goes_before_the_number(tmp_path):
    scenario = load(tmp_path, {"tiers.2.name": "1"})
    assert scenario.with_overrides({"tiers.1.compute": 5.0}).raw["tiers"][2]["compute"] == 5.0


def written(scenario):
    codes = [tier.codes for tier in scenario.problem.system.tiers]
    return [(c.up.name, c.down.name, c.average.name) for c in codes]


def test_codes_of_links(tmp_path):
    plain = ("fp32", "fp32", "fp32")
    assert written(load(tmp_path)) == [plain] * 3
    some = load(tmp_path, {"tiers.0.code": {"up": "int4", "average": "bf16"}, "tiers.1.code": "int8"})
    assert written(some) == [("int4", "fp32", "bf16"), ("int8", "int8", "int8"), plain]
    two = {"entities": 2, "fed_uplink": "1 Gbps", "fed_downlink": "1 Gbps"}
    top = load(tmp_path, {f"tiers.2.{key}": value for key, value in two.items()} | {"tiers.2.code": "int4"})
    assert written(top) == [plain, plain, ("fp32", "fp32", "int4")]
    alone = load(tmp_path, {"tiers.1.entities": 1, "tiers.1.code": "int4"})
    assert written(alone)[1] == ("int4", "int4", "fp32")


def test_codes_may_be_left_to_the_planner(tmp_path):
    """Until it chooses, the most bits are in force; a list of one is a code."""
    assert load(tmp_path, {}).problem.constants.coding_noise is None
    auto = load(tmp_path, {"tiers.0.code": {"up": "auto", "down": ["int4", "int8"]}, "tiers.1.code": ["bf16"]})
    device, edge, cloud = (tier.codes for tier in auto.problem.system.tiers)
    assert [code.name for code in device.allowed("up")] == ["fp32", "bf16", "int8", "int4"]
    assert [code.name for code in device.allowed("down")] == ["int8", "int4"]
    assert (device.up.name, device.down.name, device.names()) == ("fp32", "int8", {"up": "fp32", "down": "int8"})
    assert edge == load(tmp_path, {"tiers.1.code": "bf16"}).problem.system.tiers[1].codes
    assert auto.system.plans_codes and not cloud.planned and not device.codes_averages
    noise = auto.problem.constants.coding_noise
    assert noise.shape == (2, 4, 5) and (noise[:, -1] > 0).all()
    given = auto.with_overrides({"convergence.coding_noise_down": [5.0, 4.0, 3.0, 2.0, 1.0]}).problem
    assert given.constants.coding_noise[1, -1].tolist() == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert (given.constants.coding_noise[0] == noise[0]).all()


def test_codes_are_overridden_for_a_link_a_tier_or_all_tiers(tmp_path):
    scenario = load(tmp_path, {"tiers.0.code": {"down": "int8"}})
    moved = scenario.with_overrides({"tiers.device.code.up": "int4"})
    assert written(moved)[0] == ("int4", "int8", "fp32")
    every = scenario.with_overrides({"tiers.*.code": "bf16"})
    assert written(every) == [("bf16",) * 3, ("bf16",) * 3, ("fp32",) * 3]
    assert [tier["code"] for tier in every.raw["tiers"]] == ["bf16"] * 3
    assert "code" not in every.with_overrides({"tiers.*.code": None}).raw["tiers"][0]
    assert hsfl.plan(every).objective_s < hsfl.plan(scenario).objective_s


def test_an_override_displaces_its_alternative(tmp_path):
    scenario = load(tmp_path)
    by_target = scenario.with_overrides({"convergence.target": 0.75})
    assert by_target.problem.constants.target == 0.75
    assert not {"rounds", "slack"} & set(by_target.raw["convergence"])
    by_rounds = by_target.with_overrides({"convergence.rounds": 500})
    assert "target" not in by_rounds.raw["convergence"]
    assert hsfl.evaluate(by_rounds, [1, 2], [1, 1, 1]).rounds == 500
    both = scenario.with_overrides({"convergence.rounds": 100, "convergence.slack": 1.0})
    assert both.raw["convergence"]["rounds"] == 100 and both.raw["convergence"]["slack"] == 1.0
    (tmp_path / "p.csv").write_text(LENET.read_text())
    by_profile = scenario.with_overrides({"model.profile": "p.csv"})
    assert by_profile.raw["model"] == {"profile": "p.csv"}
    assert by_profile.with_overrides({"model.name": "lenet5"}).raw["model"] == {"name": "lenet5"}


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("tiers.devise.uplink", 1, "no tier 'devise' (did you mean device"),
        ("tiers.0.uplink", 1, "no tier '0'"),
        ("tiers.4.uplink", 1, "no tier '4'"),
        ("tiers.device", 1, "name a tier and a field"),
        ("tiers.*", 1, "name a tier and a field"),
        ("tiers.*.uplnk", 1, "unknown field tiers.device.uplnk (did you mean uplink"),
        ("tiers.*.code", "int5", 'tiers.device.code = "int5": no such code'),
        ("tiers.device.uplnk", 1, "unknown field tiers.device.uplnk (did you mean uplink"),
        ("training.batch_size.x", 1, "training.batch_size is a value, not a section"),
        ("training.batch_size", 0, "training.batch_size = 0"),
        ("traning.batch_size", 1, "unknown field traning (did you mean training"),
        ("tiers", [], "tiers"),
    ],
)
def test_a_bad_override_names_the_path(tmp_path, path, value, says):
    with pytest.raises(hsfl.HsflError, match=r"scenario\.toml: ") as caught:
        load(tmp_path).with_overrides({path: value})
    assert says in str(caught.value)


def test_a_changed_model_forgets_lists_of_the_wrong_length_with_a_sentence(tmp_path):
    scenario = load(tmp_path, {"convergence.gradient_variance": [1.0] * 5})
    moved = scenario.with_overrides({"model.name": "vgg16"})
    with pytest.raises(hsfl.HsflError, match="gradient_variance has 5 numbers; the model has 16 layers"):
        _ = moved.problem
