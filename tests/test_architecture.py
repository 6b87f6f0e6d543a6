"""Imports point one way, without cycles, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "hsfl"
MODULES = sorted(SOURCE.rglob("*.py"))
#: What each part of the package imports of the others: all it may, and nothing it does not need.
ALLOWED = {
    "version": set(),
    "errors": set(),
    "files": {"errors"},
    "factory": {"errors"},
    "display": set(),
    "records": set(),
    "problem": {"errors", "files"},
    "theory": {"problem"},
    "scenario": {"display", "errors", "files", "factory", "problem", "theory"},
    "planner": {"display", "errors", "problem", "theory"},
    "strategies": {"errors", "factory", "problem", "theory", "scenario", "planner"},
    "models": {"errors", "factory", "problem"},
    "data": {"errors", "files", "factory", "scenario"},
    "engine": {"errors", "files", "records", "problem", "theory", "models"},
    "runs": {
        "version",
        "display",
        "errors",
        "files",
        "factory",
        "records",
        "problem",
        "theory",
        "scenario",
        "strategies",
        "models",
        "data",
        "engine",
    },
    "distributed": {"errors", "files", "problem", "scenario", "engine", "runs"},
    "api": {"errors", "problem", "scenario", "planner", "engine", "runs", "distributed"},
    "experiments": {
        "errors",
        "files",
        "factory",
        "records",
        "problem",
        "theory",
        "scenario",
        "planner",
        "strategies",
        "models",
        "runs",
        "api",
    },
    "report": {"errors", "files", "records", "problem", "theory", "scenario", "planner", "runs", "api", "experiments"},
    "plot": {"errors", "scenario", "planner", "runs", "api", "report"},
    "explorer": {"errors", "problem", "scenario", "planner", "runs", "api", "report"},
    "cli": {
        "version",
        "errors",
        "files",
        "factory",
        "problem",
        "scenario",
        "planner",
        "models",
        "data",
        "runs",
        "distributed",
        "api",
        "experiments",
        "report",
        "explorer",
    },
    "__init__": {"version", "errors", "problem", "scenario", "planner", "runs", "api", "plot", "report", "explorer"},
    "__main__": {"cli"},
}
#: Third-party packages and the only parts that may import them.
CONFINED = {
    "torch": {"models", "data", "engine", "distributed", "runs", "experiments"},
    "google": {"distributed"},
    "ray": {"distributed"},
    "safetensors": {"data", "engine"},
    "filelock": {"runs"},
    "pooch": {"data"},
    "tomlkit": {"runs"},
    "wandb": {"runs"},
    "mlflow": {"runs"},
    "matplotlib": {"plot", "report"},
    "jinja2": {"report"},
    "typer": {"cli"},
    "rich": {"report", "cli"},
    "scipy": {"planner", "experiments"},
    "pydantic": {"records", "scenario", "engine", "runs", "explorer"},
}
#: A module, or a function in one, named in a string: importlib and factories take such.
IN_A_STRING = re.compile(r"hsfl(\.[a-z_]\w*)+(:\w+)?")


def imports(path: Path, *, when_run: bool = False) -> set[str]:
    """The modules that a file imports, wherever in it and however; without those for type checkers if `when_run`."""
    names = set()
    for node in _nodes(ast.parse(path.read_text()), when_run):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {_module(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and IN_A_STRING.fullmatch(node.value):
            names.add(node.value.partition(":")[0])
    return names


def _nodes(tree: ast.AST, when_run: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if when_run and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _nodes(node, when_run)


def _module(name: str, otherwise: str) -> str:
    """`name` if it is a module of hsfl, else the module it is an attribute of."""
    place = SOURCE.parent / name.replace(".", "/")
    return name if place.with_suffix(".py").is_file() or (place / "__init__.py").is_file() else otherwise


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def parts_imported(path: Path) -> set[str]:
    """The other parts of hsfl that a file imports; of a bare `import hsfl`, the package itself."""
    found = (name.split(".") for name in imports(path) if name.partition(".")[0] == "hsfl")
    return {rest[0] if rest else "__init__" for _, *rest in found} - {part_of(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downward(path: Path) -> None:
    part = part_of(path)
    assert parts_imported(path) <= ALLOWED[part], f"{part} must not import {parts_imported(path) - ALLOWED[part]}"
    for name in imports(path):
        if (top := name.partition(".")[0]) in CONFINED:
            assert part in CONFINED[top], f"{part} must not import {top}"


@pytest.mark.parametrize("part", ALLOWED)
def test_the_table_allows_only_what_is_used(part: str) -> None:
    used = set().union(*(parts_imported(path) for path in MODULES if part_of(path) == part))
    assert used == ALLOWED[part]
    assert set(ALLOWED) == {part_of(path) for path in MODULES}


def test_no_module_imports_itself_by_a_detour() -> None:
    """Neither at the top of a file nor inside a function, which would only hide the cycle."""

    def name(path: Path) -> str:
        parts = ("hsfl", *path.relative_to(SOURCE).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    graph = {name(path): imports(path, when_run=True) - {name(path)} for path in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_the_test_sees_every_kind_of_import(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "import hsfl\nfrom hsfl import api\nfrom hsfl.problem.plan import Plan\nimport importlib\n"
        "def later():\n    import hsfl.cli\n    importlib.import_module('hsfl.report.page')\n"
        "factory = 'hsfl.experiments.networks:vgg'\n"
    )
    assert imports(file) >= {"hsfl", "hsfl.api", "hsfl.problem.plan", "hsfl.cli", "hsfl.report.page"}
    assert "hsfl.experiments.networks" in imports(file)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350


@pytest.mark.parametrize("code", ["import hsfl", "import hsfl; hsfl.plan('paper')", "import hsfl.cli"])
def test_planning_a_known_model_stays_light(code: str) -> None:
    """No torch, no matplotlib, no scipy: planning is over before they would be loaded."""
    check = f"{code}; import sys; print([m for m in ('torch', 'matplotlib', 'scipy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
