"""The documentation is true of the code: generated pages, examples, links, commands, names."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import typer

import hsfl
import hsfl.cli
from hsfl.experiments.compact import write_runs
from hsfl.experiments.recipes import RECIPES
from hsfl.experiments.settings import Settings
from tests.experiments.curves import run
from tests.test_architecture import ALLOWED, CONFINED

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
GUIDES = [page for page in PAGES if page.parent.name == "docs" or page.name in ("README.md", "CONTRIBUTING.md")]
TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials"]
SHELL = ("", "sh", "bash", "console", "text")


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Fenced(NamedTuple):
    language: str
    text: str
    title: str | None


def fenced(page: Path) -> Iterator[Fenced]:
    """Every fenced block."""
    pattern = re.compile(r'^( *)```(\w*)(?: title="([^"\n]+)")?\n(.*?)^\1```$', flags=re.MULTILINE | re.DOTALL)
    for match in pattern.finditer(page.read_text(encoding="utf-8")):
        text = "".join(line.removeprefix(match[1]) for line in match[4].splitlines(keepends=True))
        yield Fenced(match[2], text, match[3])


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def blocks(*languages: str) -> list[Any]:
    found = [(page, n, block) for page in GUIDES for n, block in enumerate(fenced(page)) if block.language in languages]
    return [pytest.param(block.text, id=f"{page_id(page)}-{n}") for page, n, block in found]


def script(name: str) -> ModuleType:
    """A program of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def generate() -> ModuleType:
    return script("generate")


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("generate", "scenario.md"),
        ("generate", "results.md"),
        ("generate", "results-small.md"),
        ("pictures", "hsfl.svg"),
        ("pictures", "bound.svg"),
    ],
)
def test_generated_files_are_up_to_date(name: str, page: str, tmp_path: Path) -> None:
    """And --check notices where they are not."""
    program = script(name)
    assert program.main(["--check"]) == 0, "run  make docs"
    program.DOCS = tmp_path
    assert program.main(["--check"]) == 1
    assert program.main([]) == 0 == program.main(["--check"])
    made = tmp_path / page
    made.write_text(made.read_text() + "\n")
    assert program.main(["--check"]) == 1
    assert program.main([]) == 0
    assert made.read_text() == (ROOT / "docs" / page).read_text()


def test_every_recipe_has_results_and_every_claim_a_reason(generate: ModuleType) -> None:
    notes = generate.tomllib.loads((ROOT / "experiments" / "reasons.toml").read_text())
    reasons, waiting = notes["reasons"], notes["waiting"]
    found = {path.name.split(".")[0] for path in (ROOT / "experiments" / "results").glob("*.json")}
    assert found == RECIPES.keys() - set(waiting) and set(waiting) <= RECIPES.keys(), "results, or waiting for them"
    for name in found:
        shown = json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text())
        given = reasons.get(name, {})
        assert {claim["what"] for claim in shown["claims"]} == set(given) and all(given.values()), name
    assert set(reasons) <= found and set(notes["again"]) <= found


def test_results_are_made_again_from_runs_that_are_there(
    generate: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table "In short" has what they say, not what was stored."""
    results, settings = tmp_path / "results", Settings(seeds=(0, 1, 2))
    shutil.copytree(ROOT / "experiments" / "results", results)
    shutil.copy(ROOT / "experiments" / "reasons.toml", tmp_path)
    monkeypatch.setattr(generate, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(generate, "RESULTS", results)
    line = "| 3-tier is faster than client-cloud SFL (time to 73%) | 4.6x | 4.7x (4.7 to 4.7) | holds |"
    assert line not in generate.results()
    paces = {"3-tier": 1.0, "client-cloud": 4.7}
    found = {key: run([0.1, 0.4, *[0.79] * 8], paces.get(key[0], 2.0)) for key in RECIPES["fig2a"].runs(settings)}
    write_runs(results, RECIPES["fig2a"], settings, found)
    assert line in generate.results()


@pytest.mark.parametrize("text", [p for p in blocks("toml") if "[[tiers]]" in p.values[0]])
def test_example_scenarios_plan(text: str, tmp_path: Path) -> None:
    file = tmp_path / "example.toml"
    file.write_text(text, encoding="utf-8")
    result = hsfl.plan(file)
    assert result.status == "optimal" and result.evaluation.fits_memory
    assert max(result.intervals) > 1, "an example in which nothing is decided"


def comments_of(text: str) -> list[str]:
    """For every `print(...)` at the start of a line the comment that ends it, which may be empty."""
    return re.findall(r"^print\(.*\)(?:  # (.*))?$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_examples_print_what_they_say(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `print(...)` ends in a comment, that is what it prints."""
    monkeypatch.chdir(tmp_path)
    said = comments_of(text)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "example", "exec"), {})
    printed = out.getvalue().splitlines()
    assert len(printed) == len(said)
    assert [p for p, s in zip(printed, said, strict=True) if s] == [s for s in said if s]


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page_id(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose(file), flags=re.MULTILINE)
            assert anchor in map(slug, headings), f"{page_id(page)} links to {target}"


def quoted_commands() -> list[Any]:
    found = []
    for page in (*GUIDES, *TUTORIALS):
        for language, text, _ in fenced(page):
            for line in text.splitlines() if language in SHELL else []:
                if match := re.match(r"(?:\$ )?(?:\.venv/bin/)?hsfl (.*?)(?: &)?$", line):
                    found.append(pytest.param(match[1], id=f"{page_id(page)}: {match[0]}"))
    return found


def check_command(line: str) -> None:
    """Parse, but do not run, what follows `hsfl`."""
    name, *arguments = shlex.split(line, comments=True)
    commands = typer.main.get_command(hsfl.cli.app).commands  # type: ignore[attr-defined]
    assert name in commands, f"hsfl has no command {name}"
    try:
        commands[name].make_context(name, arguments)
    except Exception as error:
        said = error.format_message() if hasattr(error, "format_message") else error
        raise AssertionError(f"hsfl {line}: {said}") from error


@pytest.mark.parametrize("line", quoted_commands())
def test_quoted_commands_exist(line: str) -> None:
    check_command(line)


@pytest.mark.parametrize("line", ["plant paper", "plan paper --metod bcd", "plan", "profile vgg16 --batch-size x"])
def test_a_wrong_command_would_be_noticed(line: str) -> None:
    with pytest.raises(AssertionError, match=r"no command|No such option|Missing argument|Invalid value"):
        check_command(line)


def test_there_are_commands_to_check() -> None:
    assert {param.values[0].split()[0] for param in quoted_commands()} >= {"plan", "init", "profile"}


def resolve(path: str) -> None:
    """Follow a dotted path below hsfl: packages, modules, attributes, and fields that have no default."""
    value: Any = hsfl
    for name in path.split("."):
        if hasattr(value, "__path__"):
            with contextlib.suppress(ModuleNotFoundError):
                value = importlib.import_module(f"{value.__name__}.{name}")
                continue
        declared = getattr(value, "__dataclass_fields__", {}) | getattr(value, "model_fields", {})
        assert hasattr(value, name) or name in declared, f"hsfl.{path}: there is no {name}"
        value = getattr(value, name, None)


def named_in(page: Path) -> list[str]:
    packages = "|".join(sorted(ALLOWED.keys() - {"__init__", "__main__"}))
    found = re.findall(rf"`((?:{packages})(?:\.[A-Za-z_]\w*)+)`", prose(page))
    return [name for name in found if not name.endswith(".toml")]


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=page_id)
def test_names_of_the_code_exist(page: Path) -> None:
    for path in named_in(page):
        resolve(path)


def test_wrong_names_would_be_noticed() -> None:
    assert len(named_in(ROOT / "docs" / "notation.md")) > 40
    for path in ("problem.system.System.entitys", "theory.latencies.split_latency", "problem.problem.Constants.beta"):
        with pytest.raises(AssertionError):
            resolve(path)


def test_architecture_page_lists_what_may_be_imported() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|$", prose(ROOT / "docs" / "architecture.md"), re.MULTILINE
    )
    listed = {part: set(re.findall(r"`(\w+)`", parts)) for part, parts, _ in rows}
    assert listed == {part: parts for part, parts in ALLOWED.items() if not part.startswith("__")}
    for part, _, packages in rows:
        assert set(re.findall(r"\w+", packages)) == {name for name, parts in CONFINED.items() if part in parts}
