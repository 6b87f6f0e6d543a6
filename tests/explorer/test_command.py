"""hsfl explore: what it serves, what it refuses, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request

import pytest

import hsfl
from hsfl.scenario.template import scenario_text
from tests.runs.test_reading import write_run


def test_it_prints_its_address_serves_and_ends_by_an_interrupt(tmp_path) -> None:
    write_run(tmp_path / "a")
    command = [sys.executable, "-m", "hsfl", "explore", "paper", str(tmp_path), "--no-browser"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        # Tests that run in the background of a script inherit that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            asked = urllib.request.Request(f"{url}api/start", b"{}", {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                text = answer.read().decode()
            assert '"given":"paper"' in text and '"runs":true' in text
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()  # what has ended is left alone; nobody waits for what has not


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["papers"], "no such file or built-in scenario (did you mean paper"),
        (["paper", "city"], "one scenario can be explored at a time"),
        (["."], "not a run"),
        (["paper", "--set", "training.batch_size=0"], "training.batch_size = 0"),
        (["paper", "--host", "no.such.host.invalid"], "the page cannot be served there"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(command, words, sentence) -> None:
    code, out, err = command("explore", *words, "--no-browser")
    assert code == 2 and sentence in err and out == "" and err.count("\n") == 1


def test_code_beside_a_scenario_is_not_run_without_trust(command, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("HSFL_TRUST", raising=False)
    monkeypatch.setenv("HSFL_STATE", str(tmp_path / "state"))
    raw = dict(hsfl.load_scenario("paper").raw) | {"model": {"factory": "evil:make", "input_shape": [3, 32, 32]}}
    (tmp_path / "mine.toml").write_text(scenario_text(raw))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    code, _, err = command("explore", "mine.toml", "--no-browser")
    assert code == 2 and "give --trust" in err and not (tmp_path / "ran").exists()
