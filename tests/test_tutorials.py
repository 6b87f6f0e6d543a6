"""Every tutorial works from top to bottom, and prints what it says.

In a tutorial a block with a title is a file, `sh` and `python` are run, in a folder and with names of the page's own,
and `text` is what the block before it prints, in part: lines in order, however they are spaced. `console` is shown
only; tests/test_docs.py checks that its commands exist.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import ROOT, TUTORIALS, comments_of, fenced


def run_shell(commands: str, folder: Path) -> str:
    """What the commands print; an error in any of them is one."""
    tools = folder.parent / "bin"
    tools.mkdir(exist_ok=True)
    command = tools / "hsfl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hsfl "$@"\n')
    command.chmod(0o755)
    paths = {"PATH": [str(tools)], "PYTHONPATH": [str(ROOT / "src")]}
    found = {name: os.pathsep.join([*new, *filter(None, [os.environ.get(name)])]) for name, new in paths.items()}
    environment = os.environ | found | {"COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        ["sh", "-eu", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, f"{commands}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def run_python(text: str, names: dict[str, Any]) -> str:
    """What a block prints. Where `print(...)` ends in a comment, that is what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "tutorial", "exec"), names)
    comments = comments_of(text)
    if any(comments):
        printed = out.getvalue().splitlines()
        assert len(printed) == len(comments)
        assert [p for p, said in zip(printed, comments, strict=True) if said] == [said for said in comments if said]
    return out.getvalue()


def missing(lines: Iterable[str], printed: str) -> list[str]:
    """The lines that are not printed, or not after those before them; "..." stands for anything."""
    left = [" ".join(line.split()) for line in printed.splitlines()]
    lost = []
    for line in (" ".join(line.split()) for line in lines):
        if line in left:
            left = left[left.index(line) + 1 :]
        elif line not in ("", "..."):
            lost.append(line)
    return lost


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, names, printed = tmp_path / "here", {"__name__": "tutorial"}, ""
    folder.mkdir()
    monkeypatch.chdir(folder)
    for language, text, title in fenced(page):
        if title:
            (folder / title).write_text(text, encoding="utf-8")
        elif language == "sh":
            printed = run_shell(text, folder)
        elif language == "python":
            printed = run_python(text, names)
        elif language == "text":
            assert not missing(text.splitlines(), printed), printed
        else:
            assert language == "console", f"a block of {page.name} is {language!r}, which nothing checks"


def test_what_is_not_printed_is_noticed() -> None:
    printed = "one  two\n three\nfour\n"
    assert missing(["one two", "...", "four"], printed) == []
    assert missing(["three", "one two", "five"], printed) == ["one two", "five"]
    with pytest.raises(AssertionError):
        run_python("print(1)  # 2", {})
    with pytest.raises(AssertionError, match="no-such-scenario"):
        run_shell("hsfl plan no-such-scenario", Path.cwd())
