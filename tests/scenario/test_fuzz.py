"""Thousands of damaged scenarios: each gives a valid plan or one sentence, and nothing else."""

from __future__ import annotations

import copy
import datetime
import itertools
import json
import math
import random
import re
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hsfl
from hsfl.problem.plan import NEVER
from hsfl.scenario.catalog import CATALOG
from hsfl.scenario.template import scenario_text
from tests.scenario.command import no_longer_than
from tests.scenario.scenarios import SMALL, changed, to_toml

CASES_PER_TEST = 250
#: A case that takes this long hangs; the slowest sound one takes well under a second.
HANG_S = 60
#: With --optimize-learning-rate or bcd a plan takes tens of milliseconds, so only a part of the cases asks for them.
OPTIONS: list[dict[str, Any]] = [
    *[{}] * 30,
    *[{"allow_empty_tiers": True}] * 6,
    {"method": "bcd"},
    {"optimize_learning_rate": True},
    {"allow_empty_tiers": True, "optimize_learning_rate": True},
]
NAN, INF = float("nan"), float("inf")
SCALARS: list[Any] = [
    *(True, False, 0, 1, -1, 2, 3, 10**9, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, 0.999999, 1.0000001, 5e-324, 1e-320, 1e-300, 1e-30, 1e30, 1e300, 1.7e308, -2.5, NAN, INF, -INF),
    *("", " ", "x", "1", "0", "-1 Mbps", "1 bps", "5 TFLOPS", "1e400 GB", "1e-300 FLOPS", "8 GB", "1 b", "80 mbps"),
    *("nan", "inf", "\x00", "\n", "\t", "\x1b[2J", "💥", "ﬁ", "a" * 1000, "paper", "vgg16", "lenet5", "adam"),
    *("momentum", "refined", "../x.csv", "/", "nosuch:thing", "١٢ Mbps", "1_000 Mbps", "0x10 Mbps"),
    *(datetime.date(2020, 2, 2), datetime.time(1, 2), datetime.datetime(2020, 1, 2, 3, 4)),
]
COMPOUNDS: list[Any] = [
    *([], [[]], [[[]]], [0], [1], [0, 0], [1.0] * 5, [0.0] * 16, [1e300] * 5, [-1], [NAN], [True], ["1 GB"], [{}]),
    *([[1.0] * 5] * 3, [[1.0] * 16] * 3, [[0.0] * 5, [1.0]], [[1.0] * 5, 1.0], ["1 Mbps"] * 6, [10**400], [2**70] * 6),
    *({}, {"x": 1}, {"uniform": {}}, {"uniform": []}, {"uniform": [1, 2]}, {"uniform": [2, 1]}, {"uniform": [NAN, 1]}),
    *({"uniform": ["1 GFLOPS", "2 GFLOPS"]}, {"uniform": [1e-300, 1e300]}, {"uniform": [1, 1.7e308]}),
    *({"normal": ["1 Mbps", "9 Mbps"]}, {"normal": [1, 1e308]}, {"normal": [5e-324, 5e-324]}, {"normal": [1e9, 1e9]}),
    *({"lognormal": ["1 GB", 0.5]}, {"lognormal": [1e300, 10]}, {"lognormal": [1e-300, 10]}, {"lognormal": [1, 11]}),
    *({"uniform": [1, 2], "normal": [1, 2]}, {"name": "x"}),
]
GARBAGE = [
    "",
    "=",
    "[",
    "]]",
    '"',
    "'''",
    "\\",
    "#",
    "{",
    "nan",
    "\x00",
    "\x7f",
    "\ufeff",
    "\u2028",
    "é",
    "💥",
    "\r",
    "1e999",
]


def bases() -> list[dict[str, Any]]:
    """The built-in scenarios, with the 100,000 devices of city reduced to what a case may cost, and the small one."""
    found = []
    for name in hsfl.scenario_names():
        raw = tomllib.loads((CATALOG / "scenarios" / f"{name}.toml").read_text(encoding="utf-8"))
        for tier in raw["tiers"]:
            tier["entities"] = min(tier["entities"], 40)
        found.append(raw)
    per_tier = [[0.5] * 5, [0.2] * 5, [0.0] * 5]
    refined = {"convergence.drift": "refined", "convergence.gradient_dissimilarity": per_tier}
    many = {"tiers.0.parents": [1, 0, 1, 1, 1, 1], "tiers.0.uplink": [1e6, 2e6, 3e6, "4 Mbps", "5 Mbps", 6e6]}
    limited = {"tiers.0.memory": "1 MB", "tiers.1.memory": {"normal": ["8 MB", "1 MB"]}, "training.optimizer": "adamw"}
    return [*found, SMALL, changed(refined), changed(many), changed(limited)]


BASES = bases()
PROFILE = (CATALOG / "profiles" / "lenet5-1x28x28.csv").read_text(encoding="utf-8")
TEXTS = [t for raw in BASES for t in (to_toml(raw), scenario_text(raw))]


def damaged_text(rng: random.Random) -> bytes:
    """The text of a scenario with a few lines or characters wrong."""
    text = rng.choice(TEXTS)
    for _ in range(rng.choice((1, 1, 2, 4))):
        text = rng.choice(TEXT_DAMAGES)(text, rng)
    data = text.encode("utf-8")
    if rng.random() < 0.1:
        place = rng.randrange(len(data) + 1)
        data = data[:place] + rng.randbytes(rng.randint(1, 4)) + data[place:]
    return data


def _delete_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    del lines[rng.randrange(len(lines))]
    return "".join(lines)


def _repeat_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return "".join(lines)


def _swap_lines(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "".join(lines)


def _uncomment(text: str, rng: random.Random) -> str:
    places = [m.start() for m in re.finditer(r"^# (?=\w+ = )", text, flags=re.MULTILINE)]
    if not places:
        return _delete_line(text, rng)
    place = rng.choice(places)
    return text[:place] + text[place + 2 :]


def _change_character(text: str, rng: random.Random) -> str:
    place = rng.randrange(len(text) + 1)
    wanted = rng.choice([*GARBAGE, *"abcdefghijklmnopqrstuvwxyz_.,=-+ \n", *"0123456789" * 2])
    return text[:place] + wanted + text[place + rng.randint(0, 1) :]


def _change_number(text: str, rng: random.Random) -> str:
    places = [m for m in re.finditer(r"\d+(\.\d+)?", text) if not re.search(r"entities = \d*$", text[: m.start()])]
    if not places:
        return _change_character(text, rng)
    match = rng.choice(places)
    value = rng.choice(["0", "-1", "nan", "inf", "1e999", "9" * 400, "1e-310", "0.0", "1e300", "3", "true", "", "[]"])
    return text[: match.start()] + value + text[match.end() :]


def _cut_off(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


TEXT_DAMAGES: list[Callable[[str, random.Random], str]] = [
    *(_delete_line, _repeat_line, _swap_lines, _uncomment, _change_character, _change_character),
    *(_change_number, _change_number, _cut_off),
]


def damaged_structure(rng: random.Random) -> bytes:
    """A scenario with a few values, keys or tables wrong, as text that is valid TOML."""
    raw = copy.deepcopy(rng.choice(BASES))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        nodes = list(_nodes(raw))
        if not nodes:
            break
        rng.choice(DAMAGES)(raw, *rng.choice(nodes), rng)
    return to_toml(raw).encode("utf-8")


def _nodes(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in nested tables and lists: the container and the key or index."""
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield node, key
            yield from _nodes(node[key])


def _any_value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(SCALARS if rng.random() < 0.6 else COMPOUNDS))


def _replace(raw: Any, node: Any, key: Any, rng: random.Random) -> None:
    node[key] = _any_value(rng)


def _rescale(raw: Any, node: Any, key: Any, rng: random.Random) -> None:
    """A number of the right type by orders of magnitude off, which often still has a plan."""
    if key == "entities":
        node[key] = rng.randint(1, 60)
    elif isinstance(node[key], bool) or not isinstance(node[key], int | float):
        _replace(raw, node, key, rng)
    else:
        scaled = node[key] * 10.0 ** rng.choice((-300, -20, -6, -2, -1, 1, 2, 6, 20, 300))
        node[key] = int(scaled) if isinstance(node[key], int) and math.isfinite(scaled) else scaled


def _delete(raw: Any, node: Any, key: Any, rng: random.Random) -> None:
    del node[key]


def _rename(raw: Any, node: Any, key: Any, rng: random.Random) -> None:
    if isinstance(node, dict):
        known = [k for _, k in _nodes(BASES[0]) if isinstance(k, str)]
        node[rng.choice([*known, key + "s", key[:-1], key.upper(), "", "💥", "a b"])] = node.pop(key)
    else:
        node.append(_any_value(rng))


def _move(raw: Any, node: Any, key: Any, rng: random.Random) -> None:
    value = copy.deepcopy(node[key])
    target, place = rng.choice([(raw, "name"), *_nodes(raw)])
    if isinstance(target, dict):
        target[key if isinstance(key, str) else place] = value
    else:
        target.insert(place, value)


DAMAGES = [_replace, _replace, _replace, _rescale, _rescale, _delete, _rename, _move]


def extreme_numbers(rng: random.Random) -> bytes:
    """A valid scenario with a few numbers of absurd size, so that it is the arithmetic that has to cope."""
    raw = copy.deepcopy(rng.choice(BASES))
    for _ in range(rng.choice((1, 1, 2, 3))):
        exponent = rng.choice((-307, -30, -11, -9, -6, -3, 3, 6, 9, 12, 20, 29, 300))
        value = rng.uniform(1, 10) * 10.0**exponent
        section = rng.choice(("training", "tiers", "tiers", "convergence"))
        if section == "tiers":
            tier = rng.choice(raw["tiers"])
            tier[rng.choice([k for k in tier if k not in ("name", "entities", "parents")])] = value
        elif section == "training":
            raw["training"]["learning_rate"] = value
        else:
            node = raw["convergence"]
            key = rng.choice([k for k in node if k != "drift"])
            if isinstance(node[key], list):
                row = rng.choice(node[key]) if isinstance(node[key][0], list) else node[key]
                row[rng.randrange(len(row))] = value
            else:
                node[key] = value
    return to_toml(raw).encode("utf-8")


def outcome(path: Path, options: dict[str, Any]) -> bool:
    """Load and plan, and say whether there is a plan; raises unless it is valid or the error is one line for people."""
    try:
        scenario = hsfl.load_scenario(path)
        result = hsfl.plan(scenario, time_limit_s=0.5, **options)
    except hsfl.HsflError as error:
        message = str(error)
        assert message.strip() and "\n" not in message and "\r" not in message, f"not one line: {message!r}"
        return False
    problem = scenario.problem
    L, entities = problem.num_layers, problem.system.entities
    step = 0 if options.get("allow_empty_tiers") else 1
    assert all(b - a >= step for a, b in itertools.pairwise((0, *result.cuts, L))), result.cuts
    assert result.cuts[0] >= 1 and len(result.cuts) == len(entities) - 1
    assert len(result.intervals) == len(entities) and all(1 <= i <= NEVER for i in result.intervals)
    assert all(i == 1 for i, e in zip(result.intervals, entities, strict=True) if e == 1), result.intervals
    assert math.isfinite(result.objective_s) and result.objective_s > 0, result.objective_s
    assert result.status == "heuristic" if options.get("method") == "bcd" else result.status in ("optimal", "bounded")
    assert result.evaluation.rounds is not None and result.evaluation.rounds >= 1, result.evaluation.rounds
    if result.lower_bound_s is not None:
        assert 0 <= result.lower_bound_s <= result.objective_s, result.lower_bound_s
    json.dumps(result.to_dict(), allow_nan=False)
    return True


def too_dear(data: bytes) -> bool:
    """Cases that are sound but would not be quick: a large model to be measured, or a large tier."""
    try:
        raw = tomllib.loads(data.decode("utf-8"))
        shape = raw["model"].get("input_shape")
        measured = isinstance(shape, list) and shape not in ([1, 32, 32], [3, 32, 32], [1, 28, 28])
        return measured or any(3000 < tier["entities"] <= 20_000_000 for tier in raw["tiers"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def damaged_profile(rng: random.Random) -> str:
    """A layer profile with a few cells, rows or characters wrong."""
    rows = [line.split(",") for line in PROFILE.splitlines()]
    for _ in range(rng.choice((1, 1, 2, 3))):
        row = rng.choice(rows)
        kind = rng.randrange(6)
        if kind == 0 and len(rows) > 1:
            rows.remove(row)
        elif kind == 1:
            rows.insert(rng.randrange(len(rows) + 1), list(row))
        elif kind == 2 and row:
            row.pop(rng.randrange(len(row)))
        elif kind == 3:
            row.insert(rng.randrange(len(row) + 1), str(rng.choice(SCALARS)))
        elif row:
            cells = ["0", "-1", "nan", "inf", "1e308", "1e-308", "9" * 400, "", "x", '"', "1,5", "\x00", "1e30", "3"]
            row[rng.randrange(len(row))] = rng.choice(cells)
    text = "\n".join(",".join(row) for row in rows)
    return _change_character(text, rng) if rng.random() < 0.3 else text


def check_all(cases: Iterator[tuple[int, bytes, dict[str, Any]]], path: Path, shown: Path) -> None:
    """Every case ends as it may; failures are told apart by where they come from."""
    failures: dict[str, str] = {}
    sound = 0
    for seed, data, options in cases:
        shown.write_bytes(data)
        try:
            with warnings.catch_warnings(), no_longer_than(HANG_S):
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", "the convergence bound is one of SGD")
                sound += outcome(path, options)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno} ({str(error)[:200]})"
            failures.setdefault(kind, f"seed {seed}, options {options}:\n{data.decode('utf-8', 'replace')}")
    assert not failures, "\n\n".join(f"{kind}\n{case}" for kind, case in failures.items())
    assert sound, "no case had a plan, so the planner was never reached"


@pytest.mark.parametrize("first", range(0, 1000, CASES_PER_TEST))
@pytest.mark.parametrize("damage", [damaged_text, damaged_structure, extreme_numbers])
def test_damaged_scenario_gives_a_valid_plan_or_one_sentence(damage, first, tmp_path, monkeypatch):
    def cases() -> Iterator[tuple[int, bytes, dict[str, Any]]]:
        for seed in range(first, first + CASES_PER_TEST):
            rng = random.Random(f"{damage.__name__} {seed}")
            data, options = damage(rng), rng.choice(OPTIONS)
            if not too_dear(data):
                yield seed, data, options

    monkeypatch.chdir(tmp_path)
    path = tmp_path / "damaged.toml"
    check_all(cases(), path, shown=path)


def test_damaged_profile_gives_a_valid_plan_or_one_sentence(tmp_path):
    def cases() -> Iterator[tuple[int, bytes, dict[str, Any]]]:
        for seed in range(500):
            rng = random.Random(f"profile {seed}")
            yield seed, damaged_profile(rng).encode("utf-8"), rng.choice(OPTIONS)

    path = tmp_path / "scenario.toml"
    path.write_text(to_toml(changed({"model": {"profile": "layers.csv"}})))
    check_all(cases(), path, shown=tmp_path / "layers.csv")
