"""Imports point one way, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "hsfl"
#: What each part of the package may import of the others.
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "factory": {"errors"},
    "problem": {"errors"},
    "theory": {"errors", "problem"},
    "planner": {"errors", "problem", "theory"},
    "strategies": {"errors", "factory", "problem", "planner"},
    "models": {"errors", "factory", "problem"},
    "data": {"errors", "files", "factory", "problem"},
    "engine": {"errors", "files", "problem", "theory"},
    "runs": {"errors", "files", "problem", "strategies", "models", "data", "engine"},
    "api": {"errors", "problem", "theory", "planner", "strategies", "models", "engine", "runs"},
    "experiments": {"errors", "files", "problem", "theory", "planner", "strategies", "models", "engine", "runs", "api"},
    "report": {"errors", "files", "problem", "theory", "planner", "runs", "experiments"},
    "cli": {"errors", "files", "problem", "planner", "models", "data", "runs", "experiments", "report", "api"},
    "__init__": {"errors", "problem", "planner", "runs", "api"},
    "__main__": {"cli"},
}
#: Third-party packages and the only parts that may import them.
CONFINED = {
    "torch": {"models", "data", "engine", "runs", "experiments"},
    "safetensors": {"engine", "runs"},
    "pooch": {"data"},
    "requests": {"data"},
    "tomlkit": {"runs"},
    "matplotlib": {"report"},
    "typer": {"cli"},
    "rich": {"cli", "report"},
    "scipy": {"planner"},
    "pydantic": {"problem"},
}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {
                f"{node.module}.{alias.name}" if node.module == "hsfl" else str(node.module) for alias in node.names
            }
    return names


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downward(path: Path) -> None:
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "hsfl" and rest:
            assert rest[0] == part or rest[0] in ALLOWED[part], f"{part} must not import {name}"
        if top in CONFINED:
            assert part in CONFINED[top], f"{part} must not import {top}"


@pytest.mark.parametrize("code", ["import hsfl", "import hsfl; hsfl.plan('paper')", "import hsfl.cli"])
def test_planning_a_known_model_stays_light(code: str) -> None:
    """No torch, no matplotlib, no scipy: planning is over before they would be loaded."""
    check = f"{code}; import sys; print([m for m in ('torch', 'matplotlib', 'scipy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
