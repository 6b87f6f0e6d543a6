"""Checkpoints in files: whole or not there, in a format that says which it is."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from hsfl.engine import checkpoint, saving
from hsfl.engine.checkpoint import FORMAT, Checkpoints
from hsfl.errors import HsflError
from tests.scenario.command import contents

NAMED = f'"format": {FORMAT}'


def save(path: Path) -> None:
    path.write_bytes(b"tensors")


def test_what_is_written_is_found_the_newest_first(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    for round_ in (1, 2, 3):
        checkpoints.write(round_, save, {"of": round_, "not a number": float("nan")})
    found = list(checkpoints.whole(pytest.fail))
    assert [(c.round, c.path.name, c.state["of"]) for c in found] == [
        (3, "round-000000003.json", 3),
        (2, "round-000000002.json", 2),
    ]
    assert found[0].tensors.read_bytes() == b"tensors"
    assert len(list((tmp_path / "checkpoints").iterdir())) == 4


def test_a_mistake_in_the_code_is_not_called_a_full_disk(tmp_path):
    def mistaken(path: Path) -> None:
        path.write_bytes(b"part")
        raise KeyError("layer")

    with pytest.raises(KeyError, match="layer"):
        Checkpoints(tmp_path, 1).write(1, mistaken, {})
    with pytest.raises(AttributeError, match="list"):
        Checkpoints(tmp_path, 1).write(1, lambda path: saving.save(path, {"a": [1.0]}), {})
    with pytest.raises(TypeError, match="JSON"):
        Checkpoints(tmp_path, 1).write(1, save, {"a": object()})
    assert list(tmp_path.glob("*.json")) == list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EIO, "correct that")]
)
def test_what_the_disk_refuses_is_one_sentence_and_leaves_nothing(tmp_path, number, remedy):
    def refused(path: Path) -> None:
        path.write_bytes(b"part")
        raise OSError(number, os.strerror(number))

    with pytest.raises(HsflError) as error:
        Checkpoints(tmp_path, 1).write(1, refused, {})
    said = f"a checkpoint cannot be written ({os.strerror(number)}); {remedy}, then resume the run"
    assert str(error.value) == f"{tmp_path}: {said}"
    assert contents(tmp_path) == {}


def test_safetensors_errors_from_outside_are_those_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file"):
        saving.save(tmp_path / "missing" / "x", {"a": torch.zeros(2)})


def test_another_format_is_refused_and_kept(tmp_path, monkeypatch):
    """Not left out: whatever goes on without it would remove it in time."""
    monkeypatch.setattr(checkpoint, "FORMAT", 7)
    Checkpoints(tmp_path, 1).write(5, save, {})
    monkeypatch.undo()
    with pytest.raises(HsflError) as error:
        list(Checkpoints(tmp_path, 1).whole(pytest.fail))
    assert str(error.value).startswith(f"{tmp_path / 'round-000000005.json'}: a checkpoint of format 7, but this hsfl")
    assert f"format {FORMAT};" in str(error.value)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text.replace(NAMED, '"format": 99'), "it does not match its checksum"),
        (lambda text: text.replace(f"{NAMED}, ", ""), "format: Field required"),
        (lambda text: text.replace(NAMED, f'"format": "{FORMAT}"'), "format: Input should be a valid integer"),
        (lambda text: "[]\n" + text, "Input should be a valid dictionary or instance of _Head"),
        (lambda text: "[" * 10**5 + "\n" + text, "recursion"),
        (lambda text: "", "Expecting value"),
    ],
    ids=["another format", "no format", "a format in words", "a list", "nested deeply", "empty"],
)
def test_a_damaged_head_leaves_a_checkpoint_out(tmp_path, damage, why):
    Checkpoints(tmp_path, 1).write(5, save, {})
    path = tmp_path / "round-000000005.json"
    path.write_text(damage(path.read_text()))
    said: list[str] = []
    assert list(Checkpoints(tmp_path, 1).whole(said.append)) == []
    assert len(said) == 1 and said[0].startswith(f"{path}: damaged (") and why in said[0]


def test_a_checkpoint_under_the_name_of_another_round_is_left_out(tmp_path):
    Checkpoints(tmp_path, 1).write(5, save, {})
    for suffix in (".json", ".safetensors"):
        (tmp_path / f"round-000000005{suffix}").rename(tmp_path / f"round-000000009{suffix}")
    said: list[str] = []
    assert list(Checkpoints(tmp_path, 1).whole(said.append)) == []
    assert "round-000000009.json: damaged (it is of round 5)" in said[0]


def test_the_first_line_is_what_every_format_begins_with(tmp_path):
    Checkpoints(tmp_path, 1).write(5, save, {})
    first, body = (tmp_path / "round-000000005.json").read_bytes().split(b"\n", 1)
    assert json.loads(first).keys() == {"format", "sha256"}
    assert json.loads(body).keys() == {"round", "tensors", "state"}
