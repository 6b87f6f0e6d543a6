"""Sentences about errors: where in the user's own code they come from, and nothing that steers a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hsfl.errors import HsflError, ModelError, printable, raised, where
from hsfl.factory import Factory

CODE = """\
import json
import torch


def direct():
    raise KeyError("x")


def in_a_library():
    return json.loads("{")


def in_torch():
    return torch.zeros(2) @ torch.zeros(3, 4)


def of_hsfl():
    import hsfl
    return hsfl.load_scenario("nothing")


def deeper():
    return direct()
"""


def failed(spec: str, folder: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        Factory(spec, folder, spec, ModelError).call()
    return caught.value


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("own_code:direct", 6),
        ("own_code:in_a_library", 10),
        ("own_code:in_torch", 14),
        ("own_code:of_hsfl", 19),
        ("own_code:deeper", 6),
        ("own_import:f", 2),
        ("own_syntax:f", 3),
    ],
)
def test_an_error_in_the_users_own_code_keeps_its_file_and_line(spec, line, tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(CODE)
    (tmp_path / "own_import.py").write_text("import math\nmath.sqrt(-1)\n")
    (tmp_path / "own_syntax.py").write_text("def f():\n    pass\ndef g(:\n")
    file = tmp_path / f"{spec.partition(':')[0]}.py"
    error = failed(spec, tmp_path)
    assert f" in {file}, line {line}; a factory must" in str(error)
    assert error.__cause__ is not None and raised(error.__cause__) in str(error)
    monkeypatch.chdir(tmp_path)
    assert f" in {file.name}, line {line}; a factory must" in str(failed(spec, tmp_path))


def test_a_call_that_never_reaches_the_users_code_has_no_line(tmp_path):
    (tmp_path / "own_needs.py").write_text("def f(x): pass\n")
    assert "line" not in str(failed("own_needs:f", tmp_path))
    assert where(ValueError("x")) == ""
    assert raised(ValueError("a\n b.")) == "ValueError (a b)"
    assert raised(ValueError()) == "ValueError (no message)"


def test_code_that_is_installed_has_a_line_too(tmp_path):
    """The first one outside hsfl, for it may be the user's own."""
    import pdb  # whose function complains that there is no error to look at

    assert f" in {pdb.__file__}, line " in str(failed("pdb:post_mortem", tmp_path))


@pytest.mark.parametrize("code", ["\x1b", "\x07", "\x00", "\x7f", "\x9b", "\u202e", "\u2066", "\u2069"])
def test_what_steers_a_terminal_is_replaced(code):
    assert printable(f"a{code}[2Jb\n\tc") == "a\ufffd[2Jb\n\tc"
    assert str(HsflError(f"name{code}[2J: it is\r\nbad")) == "name\ufffd[2J: it is bad"


def test_other_writing_stays_as_it_is():
    text = "é ψ 💥 日本 עברית × – ζ²"
    assert printable(text) == text == str(HsflError(text))
