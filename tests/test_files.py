"""Files that are none: pipes, devices, folders and files too large are refused, and nothing waits for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hsfl.files import MAX_CSV, MAX_TOML, read_text
from tests.runs.conftest import FIXED, write_tiny
from tests.scenario.command import no_longer_than
from tests.scenario.scenarios import SMALL, changed, write


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    """A file with a hole, which takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(max(MAX_TOML, MAX_CSV) + 1)


ODD = {"pipe": (pipe, "a pipe or a device"), "device": (device, "a pipe or a device"), "huge": (huge, "larger than ")}
#: Where a scenario names a file: the command, and what has to be set besides.
NAMED = {
    "model.profile": ("plan", {"model": {"profile": "odd"}}),
    "dynamics.trace": ("train", {"dynamics.trace": "odd"}),
    "data.assignments": ("train", {"data.assignments": "odd", "data.partition": "csv"}),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("field", NAMED)
def test_an_odd_file_named_in_a_scenario_is_one_sentence(field, kind, command, tmp_path):
    make, says = ODD[kind]
    make(tmp_path / "odd")
    name, changes = NAMED[field]
    if name == "plan":
        write(tmp_path, changed(changes), "mine.toml")
    else:
        write_tiny(tmp_path, FIXED | changes, "mine.toml")
    with no_longer_than(30):
        ended = command(name, "mine.toml")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("hsfl: ") and "odd" in ended.err and says in ended.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["plan", "train", "estimate"])
def test_an_odd_scenario_is_one_sentence(name, kind, command, tmp_path):
    make, says = ODD[kind]
    make(tmp_path / "odd.toml")
    with no_longer_than(30):
        ended = command(name, "odd.toml")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("hsfl: odd.toml: cannot be read") and says in ended.err


def test_a_text_comes_without_its_byte_order_mark_and_with_plain_ends_of_lines(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffé\r\nb\n".encode())
    assert read_text(path, 10) == "é\nb\n"
    with pytest.raises(OSError, match="larger than"):
        read_text(path, 7)
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path, 10)


def test_the_small_scenario_is_far_below_the_limit(tmp_path):
    assert write(tmp_path, SMALL).stat().st_size * 1000 < MAX_TOML
