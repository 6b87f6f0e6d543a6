"""The documentation site has every page, loads nothing from elsewhere, and notices links that lead nowhere."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hsfl

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """docs/build_site.py."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(entry: Any) -> Iterator[str]:
    """The pages of a navigation."""
    if isinstance(entry, str):
        yield entry
    for part in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from named(part)


def test_every_page_is_in_the_navigation_once(site: ModuleType) -> None:
    pages = [str(path.relative_to(ROOT)) for path in site.sources() if path.suffix == ".md"]
    listed = list(named(tomllib.loads(site.CONFIGURATION.read_text())["project"]["nav"]))
    assert sorted(listed) == sorted([*pages, *site.api_pages()])


def test_links_that_lead_nowhere_are_named(site: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "there%20is.html").write_text('<a href="https://example.org">elsewhere</a><a href="#part">here</a>')
    (tmp_path / "deep" / "page.html").write_text(
        '<script src="https://example.org/a.js"></script><img src="lost.png"><a href="../gone.html#part">gone</a>'
        '<a href="../there%2520is.html?q#part">there</a><link rel="stylesheet" href="https://example.org/a.css">'
        '<link rel="canonical" href="https://example.org/page.html">'
    )
    assert list(site.faults(tmp_path)) == [
        "deep/page.html loads https://example.org/a.js",
        "deep/page.html loads https://example.org/a.css",
        "deep/page.html links to lost.png, which is not there",
        "deep/page.html links to ../gone.html#part, which is not there",
    ]


def test_the_site_builds(site: ModuleType, tmp_path: Path) -> None:
    for package in ("zensical", "mkdocstrings_handlers.python", "latex2mathml"):
        pytest.importorskip(package, reason="the extra docs is not installed")
    assert site.main(["--out", str(tmp_path)]) == 0
    offered = (tmp_path / "site" / "api" / "hsfl.html").read_text()
    assert all(f'id="hsfl.{name}"' in offered for name in hsfl.__all__ if name != "__version__")
    extended = (tmp_path / "site" / "api" / "extending.html").read_text()
    assert all(f'id="{path}"' in extended for paths in site.SEAMS.values() for path in paths)
    assert 'id="hsfl.engine.backend.Backend._move"' in extended  # to be written by a subclass
    for name, formula in (("notation", 'display="inline"'), ("planning", 'display="block"')):
        page = (tmp_path / "site" / "docs" / f"{name}.html").read_text()
        assert formula in page and "arithmatex" not in page and "\\frac" not in page
    found = json.loads((tmp_path / "site" / "search.json").read_text())["items"]
    assert any("lognormal" in item["text"] and item["location"].startswith("docs/scenario") for item in found)
