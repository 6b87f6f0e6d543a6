"""Layer profiles: CSV there and back, and one sentence for every CSV that is not one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hsfl.errors import ScenarioError
from hsfl.problem.profile import (
    OPTIMIZER_STATE_COPIES,
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    LayerProfile,
)
from hsfl.scenario.catalog import CATALOG

HEADER = "name,forward_flops,backward_flops,activation_bits,gradient_bits,parameter_bits,optimizer_bits"
GOOD = f"{HEADER}\nconv,10,20,30,40,50,0\nfc,1,2,3,4,5,0\n"
STATISTICS = ("gradient_variance", "gradient_second_moment", "gradient_dissimilarity")
NUMBERS = st.floats(0, 1e24) | st.integers(0, 2**60).map(float)


def make(layers: int, optional: tuple[str, ...] = ()) -> LayerProfile:
    rng = np.random.default_rng(layers)
    columns = {c: rng.uniform(0, 1e9, layers) for c in (*REQUIRED_COLUMNS, *optional)}
    if "buffer_bits" in columns:
        columns["buffer_bits"] = columns["parameter_bits"] / 3
    return LayerProfile(tuple(f"layer{i + 1}" for i in range(layers)), **columns)


def same(a: LayerProfile, b: LayerProfile) -> bool:
    fields = [f.name for f in dataclasses.fields(LayerProfile)]
    return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in fields)


def test_the_columns_are_those_of_the_documentation():
    assert ",".join(("name", *REQUIRED_COLUMNS)) == HEADER
    assert ("buffer_bits", *STATISTICS) == OPTIONAL_COLUMNS


@pytest.mark.parametrize("count", range(len(OPTIONAL_COLUMNS) + 1))
def test_csv_there_and_back(count, tmp_path):
    profile = make(7, OPTIONAL_COLUMNS[:count])
    path = tmp_path / "p.csv"
    path.write_text(profile.to_csv(), encoding="utf-8")
    assert path.read_text().splitlines()[0] == ",".join([HEADER, *OPTIONAL_COLUMNS[:count]])
    found = LayerProfile.from_csv(path)
    assert same(found, profile) and len(found) == 7
    for column in OPTIONAL_COLUMNS[count:]:
        assert getattr(found, column) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True, database=None)
@given(
    values=st.lists(NUMBERS, min_size=6, max_size=6),
    name=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1),
    comma=st.sampled_from(["", ",", '"', ",,\"'"]),
)
def test_any_number_and_name_survive(values, name, comma, tmp_path):
    profile = LayerProfile((name + comma + name,), *(np.array([v]) for v in values))
    path = tmp_path / "p.csv"
    path.write_text(profile.to_csv(), encoding="utf-8")
    assert same(LayerProfile.from_csv(path), profile)


@pytest.mark.parametrize("path", sorted((CATALOG / "profiles").iterdir(), key=str), ids=lambda p: p.name)
def test_shipped_profiles_survive(path, tmp_path):
    profile = LayerProfile.from_csv(path)
    assert len(profile) >= 5
    assert (profile.activation_bits > 0).all() and (profile.parameter_bits > 0).all()
    assert all(getattr(profile, c) is not None for c in STATISTICS)
    copy = tmp_path / "copy.csv"
    copy.write_text(profile.to_csv(), encoding="utf-8")
    assert same(LayerProfile.from_csv(copy), profile)


def test_spreadsheets_may_add_a_byte_order_mark_blank_lines_blanks_and_windows_ends_of_lines(tmp_path):
    plain, other = tmp_path / "plain.csv", tmp_path / "other.csv"
    plain.write_text(GOOD)
    text = "\ufeff" + GOOD.replace(",", " , ").replace("\n", "\r\n") + "\r\n,,,,,,\r\n"
    other.write_bytes(text.encode("utf-8"))
    assert same(LayerProfile.from_csv(other), LayerProfile.from_csv(plain))


def test_columns_may_come_in_any_order(tmp_path):
    path = tmp_path / "p.csv"
    rows = [line.split(",") for line in GOOD.splitlines()]
    path.write_text("\n".join(",".join(reversed(row)) for row in rows))
    found = LayerProfile.from_csv(path)
    assert found.names == ("conv", "fc")
    assert found.forward_flops.tolist() == [10, 1] and found.parameter_bits.tolist() == [50, 5]


BAD = {
    "empty": ("", ["column name, forward_flops", "missing"]),
    "blank lines only": ("\n\n  \n", ["column name", "missing"]),
    "no layers": (HEADER + "\n", ["no layers", "one row per layer"]),
    "no header": ("conv,1,2,3,4,5,0\n", ["missing", "a profile needs name, forward_flops"]),
    "missing column": (GOOD.replace(",activation_bits", ""), ["column activation_bits missing"]),
    "missing columns": ("name,forward_flops\na,1\n", ["backward_flops, activation_bits", "missing"]),
    "missing name": (GOOD.replace("name,", "layer,"), ["column name missing"]),
    "misspelt column": (GOOD.replace("gradient_bits", "gradient_bit"), ["column gradient_bits missing"]),
    "unknown column": (
        f"{HEADER},colour\nconv,1,1,1,1,1,1,red\n",
        ["unknown column colour", "known are", "gradient_variance"],
    ),
    "more buffers than parameters": (
        f"{HEADER},buffer_bits\nconv,10,20,30,40,50,0,50\nfc,1,2,3,4,5,0,6\n",
        ["layer 2", "column buffer_bits: 6 is more than its parameter_bits, 5"],
    ),
    "column twice": (f"{HEADER},forward_flops\nconv,1,1,1,1,1,1,1\n", ["twice"]),
    "not a number": (GOOD.replace("40", "many"), ["layer 1", "gradient_bits", "'many'", "number"]),
    "empty cell": (GOOD.replace("1,2,3", "1,,3"), ["layer 2", "backward_flops", "''", "number"]),
    "negative": (GOOD.replace("50", "-50"), ["layer 1", "parameter_bits", "'-50'", "number"]),
    "nan": (GOOD.replace("20", "nan"), ["layer 1", "backward_flops", "'nan'", "number"]),
    "inf": (GOOD.replace("30", "inf"), ["layer 1", "activation_bits", "'inf'", "number"]),
    "overflow": (GOOD.replace("30", "1e999"), ["layer 1", "activation_bits", "'1e999'", "number"]),
    "unit": (GOOD.replace("30", "30 MB"), ["layer 1", "activation_bits", "'30 MB'", "number"]),
    "short row": (GOOD + "x,1,2\n", ["layer 3", "3 cells", "7 columns"]),
    "long row": (GOOD + "x,1,2,3,4,5,6,7\n", ["layer 3", "8 cells", "7 columns"]),
    "other separator": (GOOD.replace(",", ";"), ["missing"]),
    "open quote": (GOOD + '"x,1,2,3,4,5,6\n', ["not a CSV file"]),
    "bad optional": (f"{HEADER},gradient_variance\nconv,1,1,1,1,1,1,-2\n", ["layer 1", "gradient_variance", "'-2'"]),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_csv_ends_in_one_sentence(text, tmp_path):
    content, says = BAD[text]
    path = tmp_path / "bad.csv"
    path.write_text(content, encoding="utf-8")
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert all(part in message for part in says), message


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04\xff\xfe\x00\x80")
    assert refusal(path).startswith(f"{path}: cannot be read as a CSV text file")


def test_zero_bytes(tmp_path):
    path = tmp_path / "zero.csv"
    path.write_bytes(bytes(64))
    assert refusal(path).startswith(f"{path}: ")


def test_a_missing_file_says_how_to_make_one(tmp_path):
    path = tmp_path / "none.csv"
    message = refusal(path)
    assert message.startswith(f"{path}: no such layer profile") and "hsfl profile" in message


def test_a_folder(tmp_path):
    assert refusal(tmp_path).startswith(f"{tmp_path}: cannot be read")


def refusal(path) -> str:
    with pytest.raises(ScenarioError) as caught:
        LayerProfile.from_csv(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)])
def test_optimizer_state_is_copies_of_the_parameters(optimizer, copies):
    profile = make(4)
    changed = profile.with_optimizer(optimizer)
    assert changed.optimizer_bits.tolist() == (copies * profile.parameter_bits).tolist()
    assert changed.parameter_bits is profile.parameter_bits


def test_every_optimizer_is_covered():
    assert set(OPTIMIZER_STATE_COPIES) == {"sgd", "momentum", "adam", "adamw"}
