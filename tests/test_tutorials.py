"""Every tutorial works from top to bottom, and prints what it says.

In a tutorial a block with a title is a file, `sh` and `python` are run, in a folder and with names of the page's own,
and `text` is what the block before it prints, in part: lines in order, however they are spaced. `console` is shown
only; tests/test_docs.py checks that its commands exist.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hsfl.engine import BACKENDS
from hsfl.engine.links import AVERAGE_CODECS, CODECS
from hsfl.problem.codes import CODES
from hsfl.theory.convergence import DRIFT_MODELS
from tests.scenario.command import Command
from tests.test_docs import ROOT, TUTORIALS, comments_of, fenced

ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
#: What a command may begin with, and is so here: see `left_as_it_was`.
ONE_THREAD = "OMP_NUM_THREADS=1 "


@pytest.fixture
def left_as_it_was() -> Iterator[None]:
    """What a tutorial changes for all: threads, torch's random numbers, and what it enters beside what is built in.

    Torch computes with one thread, as with ENVIRONMENT from the start.
    """
    threads, entered = torch.get_num_threads(), [CODES, CODECS, AVERAGE_CODECS, DRIFT_MODELS, BACKENDS]
    built_in: list[dict[str, Any]] = [dict(one) for one in entered]
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)
    for one, before in zip(entered, built_in, strict=True):
        one.clear()
        one.update(before)


def run_commands(commands: str, command: Command, folder: Path) -> str:
    """What the commands print: those of hsfl in this process, which has imported it; with others, all in a shell."""
    lines = [line.removeprefix(ONE_THREAD) for line in commands.splitlines()]
    if not all(line.startswith("hsfl ") and not line.endswith("&") for line in lines):
        return run_shell(with_free_ports(commands), folder)
    ended = [command(*shlex.split(line)[1:]) for line in lines]
    assert not any(one.code for one in ended), ended
    return "".join(one.out for one in ended)


def run_shell(commands: str, folder: Path) -> str:
    """What the commands print; an error in any of them is one."""
    tools = folder.parent / "bin"
    tools.mkdir(exist_ok=True)
    command = tools / "hsfl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hsfl "$@"\n')
    command.chmod(0o755)
    paths = {"PATH": [str(tools)], "PYTHONPATH": [str(ROOT / "src")]}
    found = {name: os.pathsep.join([*new, *filter(None, [os.environ.get(name)])]) for name, new in paths.items()}
    environment = os.environ | found | ENVIRONMENT
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


def with_free_ports(text: str) -> str:
    """The addresses 127.0.0.1:70NN of a block at ports that nobody listens at."""
    found = sorted(set(re.findall(r"127\.0\.0\.1:70\d\d", text)))
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in found]
        free = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for address, other in zip(found, free, strict=True):
        text = text.replace(address, other)
    return text


@pytest.mark.usefixtures("left_as_it_was")
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial(page: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, names, printed = tmp_path / "here", {"__name__": "tutorial"}, ""
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for language, text, title in fenced(page):
        if title:
            (folder / title).write_text(text, encoding="utf-8")
        elif language == "sh":
            printed = run_commands(text, command, folder)
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
