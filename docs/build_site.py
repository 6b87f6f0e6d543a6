"""Build the documentation site into build/site, or show it while its pages are being written.

    python docs/build_site.py [--preview] [--address HOST:PORT] [--out FOLDER]

All pages are copied to build/pages as they lie in the repository, so that the links between them hold, with two pages
more, written from docstrings. A link that leads nowhere fails, and so does whatever a reader's browser would load from
elsewhere. docs/zensical.toml has the order of pages.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import hsfl

ROOT = Path(__file__).parent.parent
CONFIGURATION = ROOT / "docs" / "zensical.toml"
#: Pages, and what they link to or show.
PATTERNS = (
    "*.md", "docs/**/*.md", "docs/*.css", "docs/*.png", "docs/*.svg", "benchmarks/*.md", "experiments/*/*.png",
    "examples/*",
)  # fmt: skip
#: Browsers start no worker from a disk, but do from a text that a page has.
WORKER = """if (location.protocol === "file:") {
  const FromFile = Worker, text = new Blob([SCRIPT], { type: "text/javascript" });
  window.Worker = function () { return new FromFile(URL.createObjectURL(text)); };
}
"""
#: What users put their own implementations of, or call in them.
SEAMS = {
    "Choose cuts and intervals": ["hsfl.problem.strategy.Strategy"],
    "Code what links carry": [
        "hsfl.problem.codes.Code", "hsfl.problem.codes.LinkCodes", "hsfl.engine.links.Codec", "hsfl.engine.links.Link",
    ],
    "Average": ["hsfl.engine.averaging.AveragingRule", "hsfl.engine.averaging.CorrectedRule"],
    "Model drift": [
        "hsfl.theory.convergence.drift_coefficients", "hsfl.theory.convergence.drift", "hsfl.theory.convergence.bound",
        "hsfl.theory.convergence.rounds_needed",
    ],
    "Train rounds": [
        "hsfl.engine.backend.Backend", "hsfl.engine.training_data.TrainingData", "hsfl.engine.entity.Entity",
        "hsfl.engine.clock.Clock", "hsfl.problem.topology.Topology",
    ],
    "Cut and measure models": [
        "hsfl.models.chain", "hsfl.models.profile", "hsfl.models.build", "hsfl.problem.profile.LayerProfile",
    ],
    "Count time": ["hsfl.theory.latency.split_latency", "hsfl.theory.latency.aggregation_latency"],
    "Read runs": ["hsfl.records"],
}  # fmt: skip

#: Where a subclass has to write methods that begin with an underscore.
WITH_PRIVATE = ("hsfl.engine.backend.Backend",)


def sources() -> list[Path]:
    """Every file of the repository that the site has."""
    return sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file())


def api_pages() -> dict[str, str]:
    """The pages made from docstrings: everything that `import hsfl` offers, and what can be extended."""
    names = [name for name in hsfl.__all__ if not name.startswith("_")]
    offered = "\n\n".join(f"::: hsfl.{name}" for name in sorted(names, key=str.lower))
    seams = "\n\n".join(f"## {title}\n\n" + "\n\n".join(map(_below, paths)) for title, paths in SEAMS.items())
    return {
        "api/hsfl.md": f"# import hsfl\n\nWhat the package offers in Python, by name.\n\n{offered}\n",
        "api/extending.md": "# What can be extended\n\nThe classes and functions that your own code replaces or calls. "
        "[The tutorial](../docs/tutorials/5-extend.md) shows how, "
        "[architecture](../docs/architecture.md#where-to-add-things) says where each belongs.\n\n"
        f"{seams}\n",
    }


def _below(path: str) -> str:
    shown = f"::: {path}\n    options:\n      heading_level: 3"
    return f'{shown}\n      filters: ["!^__"]' if path in WITH_PRIVATE else shown


def search_from_disk() -> str:
    """The script with which a site that is opened from a disk can be searched; docs/zensical.toml has pages load it."""
    found = importlib.util.find_spec("zensical")
    if found is None or found.origin is None:
        sys.exit("the documentation site needs zensical: pip install '.[docs]'")
    (worker,) = Path(found.origin).parent.glob("templates/assets/javascripts/workers/search.*.js")
    return WORKER.replace("SCRIPT", json.dumps(worker.read_text(encoding="utf-8")))


def collect(out: Path) -> None:
    """Make the folder of pages equal to what is in the repository; files that are as they were are left alone."""
    pages = out / "pages"
    wanted = {pages / path.relative_to(ROOT): path.read_bytes() for path in sources()}
    made = api_pages() | {"assets/javascripts/instead-of-iframe-worker.js": search_from_disk()}
    wanted |= {pages / name: text.encode() for name, text in made.items()}
    for page in [path for path in pages.rglob("*") if path.is_file()]:
        if page not in wanted:
            page.unlink()
    wanted[out / CONFIGURATION.name] = CONFIGURATION.read_bytes()
    for page, content in wanted.items():
        if not page.is_file() or page.read_bytes() != content:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_bytes(content)


class Links(HTMLParser):
    """What a page links to, and what a browser loads with it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for address in filter(None, (given.get("href"), given.get("src"))):
            self.found.append(address)
            if "src" in given or (tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload")):
                self.loaded.append(address)


def faults(site: Path) -> Iterator[str]:
    """A sentence for everything a page of the site links to and has not, or loads from elsewhere."""
    for page in sorted(site.rglob("*.html")):
        links = Links()
        links.feed(page.read_text(encoding="utf-8"))
        name = page.relative_to(site)
        yield from (f"{name} loads {address}" for address in links.loaded if urlsplit(address).netloc)
        for address in links.found:
            parts = urlsplit(address)
            if not parts.scheme and not parts.netloc and not parts.path.startswith("/"):
                target = page.parent / unquote(parts.path) if parts.path else page
                if not target.exists():
                    yield f"{name} links to {address}, which is not there"


def build(out: Path) -> int:
    """Build the site; the exit code is not 0 when a link leads nowhere."""
    site = out / "site"
    shutil.rmtree(site, ignore_errors=True)
    if code := zensical(out, "build", "--clean", "--strict"):
        return code
    found = list(faults(site))
    print("\n".join(found) or f"{site / 'index.html'} is the first page", file=sys.stderr if found else sys.stdout)
    return int(bool(found))


def zensical(out: Path, *arguments: str) -> int:
    paths = [str(ROOT / "docs"), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with suppress(KeyboardInterrupt):
        return subprocess.run([sys.executable, "-m", "zensical", *arguments], cwd=out, env=environment).returncode
    return 0


def keep_collecting(out: Path) -> None:
    while True:
        time.sleep(1)
        collect(out)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preview", action="store_true", help="serve the site, and again whenever a page changes")
    parser.add_argument("--address", default="127.0.0.1:8000", help="where, HOST:PORT (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="the folder to write (default: %(default)s)")
    given = parser.parse_args(arguments)
    collect(given.out)
    if given.preview:
        threading.Thread(target=keep_collecting, args=[given.out], daemon=True).start()
        return zensical(given.out, "serve", "--dev-addr", given.address)
    return build(given.out)


if __name__ == "__main__":
    sys.exit(main())
