"""A run on other machines is the run that would have been trained on them."""

from __future__ import annotations

import pytest

import hsfl
from hsfl.records import Record
from hsfl.runs.reading import Run
from hsfl.runs.retiming import retimed
from hsfl.scenario.scenario import Scenario
from tests.runs.conftest import FIXED

FASTER = {
    "tiers.device.compute": "40 kFLOPS",
    "tiers.edge.compute": "120 kFLOPS",
    "tiers.cloud.compute": "2 MFLOPS",
    **{f"tiers.{tier}.{link}": "1 Mbps" for tier in ("device", "edge") for link in ("fed_uplink", "fed_downlink")},
    "tiers.device.uplink": {"lognormal": ["200 kbps", 1.5]},
    "tiers.device.downlink": {"lognormal": ["200 kbps", 1.5]},
    "tiers.edge.uplink": {"lognormal": ["400 kbps", 1.5]},
    "tiers.edge.downlink": {"lognormal": ["400 kbps", 1.5]},
}
KINDS = {
    "HSFL": {},
    "HSFL, measured once": {"strategy.replan_every": 0},
    "HSFL, planned codes": {"tiers.device.code": "auto", "tiers.edge.code": {"up": ["bf16", "int4"]}},
    "scenario's constants": {
        "strategy.constants": "scenario",
        "convergence.smoothness": 1.0,
        "convergence.initial_gap": 1.0,
        "convergence.gradient_variance": [0.1] * 4,
        "convergence.gradient_dissimilarity": [0.1] * 4,
        "convergence.slack": 10.0,
    },
    "RMA+RMS": {"strategy.name": "RMA+RMS"},
    "RMA+MS": {"strategy.name": "RMA+MS"},
    "DAMA+RMS": {"strategy.name": "DAMA+RMS"},
    "RMA+AMS": {"strategy.name": "RMA+AMS"},
    "PSL": {"strategy.name": "PSL", "strategy.cuts": [1, 3]},
    "fixed": FIXED,
    "several mini-batches": FIXED | {"training.micro_batches": 3},
    "in chunks": FIXED | {"training.chunks": 2},
    "planned mini-batches": {
        "training.micro_batches": [1, 3],
        "strategy.drift": "refined",
        "convergence.rounds": 10**5,
    },
    "cohorts": FIXED | {"participation.cohort": 2, "participation.dropout": 0.2},
    "a cohort for every round": FIXED | {"participation.cohort": 3, "participation.redraw": "round"},
}


def trained(tiny, tmp_path, name: str, changes: dict[str, object]) -> tuple[Scenario, Run]:
    scenario = hsfl.load_scenario(tiny(), changes)
    return scenario, hsfl.train(scenario, out=tmp_path / name)


def timeless(record: Record) -> Record:
    return record.model_copy(update={"time_s": 0.0})


@pytest.mark.parametrize("kind", KINDS)
def test_the_clock_alone_gives_what_training_gave(kind: str, tiny, tmp_path) -> None:
    """On the same machines, and on machines twice as fast, where every plan stays: every line of the files."""
    scenario, run = trained(tiny, tmp_path, "once", KINDS[kind])
    again = retimed(run, scenario)
    assert again is not None
    assert (again.metrics, again.plans) == (run.metrics, run.plans)
    faster, expected = trained(tiny, tmp_path, "faster", {**KINDS[kind], **FASTER})
    found = retimed(run, faster)
    assert found is not None
    assert [line.time_s for line in found.metrics] == pytest.approx([line.time_s for line in expected.metrics])
    assert found.metrics[-1].time_s == pytest.approx(run.metrics[-1].time_s / 2)
    for seen, wanted in ((found.metrics, expected.metrics), (found.plans, expected.plans)):
        assert [timeless(line) for line in seen] == [timeless(line) for line in wanted]


def test_a_run_is_not_that_of_machines_on_which_other_plans_are_made(tiny, tmp_path) -> None:
    _, run = trained(tiny, tmp_path, "once", {})
    slow = {f"tiers.device.{link}": "1 kbps" for link in ("fed_uplink", "fed_downlink")}
    scenario, other = trained(tiny, tmp_path, "other", slow)
    assert [plan.intervals for plan in other.plans] != [plan.intervals for plan in run.plans]
    assert retimed(run, scenario) is None
    fixed, once = trained(tiny, tmp_path, "fixed", FIXED)
    found = retimed(once, fixed.with_overrides(slow))
    assert found is not None and found.metrics[-1].time_s > once.metrics[-1].time_s


def test_other_averages_are_another_run(tiny, tmp_path) -> None:
    class Mine:
        name, replans, needs_constants, every = "mine", False, False, 3

        def propose(self, problem, current, round_):
            return hsfl.Plan((1, 3), (1, 1, 1))

        def averages(self, plan, tier, rounds):
            return rounds % self.every == 0

    scenario = hsfl.load_scenario(tiny())
    mine = Mine()
    run = hsfl.train(scenario, strategy=mine, out=tmp_path / "run")
    again = retimed(run, scenario, mine)
    assert again is not None and again.metrics == run.metrics
    mine.every = 2
    assert retimed(run, scenario, mine) is None
