"""How fast the page of hsfl explore is, in a real browser, and a picture of it.

python benchmarks/explore.py [--picture docs/explore.png]

Prints, for some scenarios, the seconds from the start of the command to the page with its plan, and the milliseconds
from a slider's move to the picture of the new plan (least, median and largest of 40). Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

MOVES = 40
#: Moves a slider, and waits until the page has drawn the answer; milliseconds of each move.
SLIDE = """async (moves) => {
  const slider = document.querySelector('[data-path$=".uplink"] input[type=range]'), found = [];
  for (let i = 0; i < moves; i++) {
    slider.value = 350 + 10 * i;
    const start = performance.now();
    slider.dispatchEvent(new Event("input"));
    while (!document.body.dataset.settled) await new Promise((done) => setTimeout(done, 1));
    await new Promise(requestAnimationFrame);
    found.push(performance.now() - start);
    await new Promise((done) => setTimeout(done, 50));
  }
  return found;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="write a picture of the page of the first scenario")
    parser.add_argument("--scenarios", nargs="+", default=["paper", "city"])
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in given.scenarios:
            measure(browser, name, given.picture if name == given.scenarios[0] else None)
        browser.close()


def measure(browser: Any, name: str, picture: Path | None) -> None:
    started = time.perf_counter()
    command = [sys.executable, "-m", "hsfl", "explore", name, "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        served = time.perf_counter() - started
        page = browser.new_page(viewport={"width": 1440, "height": 980})
        page.goto(url)
        page.wait_for_selector("#cut-0")
        shown = time.perf_counter() - started
        took = page.evaluate(SLIDE, MOVES)
        print(
            f"{name}: served after {served:.2f} s, shown after {shown:.2f} s; from slider to picture "
            f"{statistics.median(took):.0f} ms (median of {MOVES}; {min(took):.0f} to {max(took):.0f} ms)"
        )
        if picture is not None:
            page.goto(url)
            page.reload()
            page.wait_for_selector("#cut-0")
            page.screenshot(path=picture)
            Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)  # half the bytes, same look
        server.terminate()


if __name__ == "__main__":
    main()
