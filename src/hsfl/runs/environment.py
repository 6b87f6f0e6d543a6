"""What a run was trained with: environment.json."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import numpy as np
import torch

from hsfl.records import Environment
from hsfl.runs.executor import Executor
from hsfl.runs.preparing import Prepared
from hsfl.scenario.scenario import Scenario
from hsfl.version import __version__


def environment(
    prepared: Prepared, scenario: Scenario, data_folder: Path | None, run: str, executor: Executor | None
) -> Environment:
    device = prepared.device
    return Environment(
        run=run,
        hsfl=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=np.__version__,
        platform=platform.platform(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        command=sys.argv,
        strategy=prepared.task.strategy.name,
        loss=prepared.objective.name,
        metrics=", ".join(prepared.backend.metrics),
        scenario_folder=None if scenario.folder is None else str(scenario.folder.resolve()),
        data_folder=None if data_folder is None else str(data_folder.resolve()),
        cluster=None if executor is None else executor.name,
    )
