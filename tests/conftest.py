"""Set-up for all tests."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores: threads of their own would only wait for each other. Before torch or numpy is imported.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
# Some virtual machines report AMX without its tiles: torch's bfloat16 fails there, and what is computed after it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# The code that tests write beside scenarios is their own; tests of trust take this away.
os.environ.setdefault("HSFL_TRUST", "1")

from pathlib import Path

import hypothesis
import pytest

from tests.scenario.command import Command

# Machines differ and are busy: how long an example takes says nothing.
hypothesis.settings.register_profile(
    "any machine", deadline=None, max_examples=40, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)
