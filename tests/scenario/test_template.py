"""What `hsfl init` writes: the same scenario, with every field explained."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hsfl
from hsfl.scenario.catalog import CATALOG
from hsfl.scenario.schema import SECTIONS, ScenarioFile
from hsfl.scenario.template import field_reference, scenario_text
from hsfl.scenario.toml_format import dotted, toml_value
from tests.scenario.scenarios import SMALL, changed


def raw_of(name: str) -> dict:
    return tomllib.loads((CATALOG / "scenarios" / f"{name}.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", hsfl.scenario_names())
def test_the_text_reads_back_as_the_same_scenario(name):
    raw = raw_of(name)
    assert hsfl.load_scenario(name).raw == raw
    assert tomllib.loads(scenario_text(raw)) == raw


def test_every_field_of_every_section_occurs_and_is_explained():
    text = scenario_text(raw_of("paper"))
    parts = re.split(r"^(?:# )?\[+(\w+)\]+$", text, flags=re.MULTILINE)
    by_section = {"": parts[0]}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        by_section.setdefault(name, body)  # the first tier is the one explained in full
    assert set(by_section) == {"", *SECTIONS}
    for name, section in {"": ScenarioFile, **SECTIONS}.items():
        lines = by_section[name].splitlines()
        for field, info in section.model_fields.items():
            if name == "" and field in SECTIONS:
                continue
            places = [i for i, line in enumerate(lines) if re.match(rf"(# )?{field} = ", line)]
            assert places, f"{name}.{field}"
            assert info.description, f"{name}.{field}"
            explained = " ".join(line.removeprefix("# ") for line in lines[: places[-1]])
            assert info.description in explained, f"{name}.{field}"


def test_every_line_that_looks_like_a_field_can_be_uncommented():
    text = scenario_text(raw_of("paper"))
    known = {field for section in SECTIONS.values() for field in section.model_fields}
    seen = set()
    for match in re.finditer(r"^# ((\w+) = (?!\.\.\.$).*)$", text, flags=re.MULTILINE):
        line, field = match.groups()
        if field in known:
            before = re.sub(r"^# (\[\w+\])$", r"\1", text[: match.start()], flags=re.MULTILINE)
            parsed = tomllib.loads(before + line + text[match.end() :])
            tables = [table for table in (*parsed.values(), *parsed["tiers"]) if isinstance(table, dict)]
            assert any(field in table for table in tables), line
            seen.add(field)
    assert seen >= {"parents", "rounds", "slack"}


def test_no_line_is_too_wide_to_read():
    for name in hsfl.scenario_names():
        comments = [line for line in scenario_text(raw_of(name)).splitlines() if line.startswith("#")]
        assert comments and max(map(len, comments)) <= 120


TOML = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), inner),
    max_leaves=6,
)


@settings(max_examples=100, derandomize=True, database=None)
@given(TOML)
def test_any_value_survives_its_notation(value):
    read = tomllib.loads(f"value = {toml_value(value)}")["value"]
    assert read == value and type(read) is type(value)


@example("\x7f")
@settings(max_examples=60, derandomize=True, database=None)
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=60))
def test_any_description_survives(text):
    raw = changed({"description": text, "name": text})
    assert tomllib.loads(scenario_text(raw)) == raw


def test_the_reference_lists_every_field_once():
    lines = field_reference().splitlines()
    fields = [line.split("`")[1] for line in lines if line.startswith("| `")]
    expected = [f for f in ScenarioFile.model_fields if f not in SECTIONS]
    expected += [f for section in SECTIONS.values() for f in section.model_fields]
    assert fields == expected
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in lines if line.startswith("|"))
    assert SMALL["name"] not in fields


def test_nested_fields_by_their_paths():
    raw = {"seed": 1, "tiers": [{"name": "device", "compute": {"uniform": [1, 2]}}, {"entities": 3}], "data": {}}
    assert dotted(raw) == {"seed": 1, "tiers.device.name": "device", "tiers.device.compute.uniform": [1, 2]} | {
        "tiers.2.entities": 3
    }
