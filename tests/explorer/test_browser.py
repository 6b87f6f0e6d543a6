"""The page in a real browser: Chromium, headless, driven by Playwright."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hsfl
from hsfl.explorer.planning import PlanPage
from hsfl.explorer.site import serve
from hsfl.explorer.watching import RunsPage
from hsfl.records import RoundRecord
from hsfl.scenario.toml_format import toml_or_text
from tests.runs.test_reading import write_run

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: apt-get install chromium")
expect = playwright.expect
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser) -> Iterator[Opened]:
    """Opens windows; nothing that they do may end in an error of the page."""
    contexts, errors = [], []

    def go(url: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(url)
        return page

    yield go
    for context in contexts:
        context.close()
    assert errors == []


def settled(page: Any) -> dict[str, Any]:
    """What the page shows, once nothing is on its way."""
    page.wait_for_selector("body[data-settled^='{']", timeout=WAIT_MS)
    state: dict[str, Any] = json.loads(page.evaluate("document.body.dataset.settled"))
    return state


def planned(state: dict[str, Any]) -> Any:
    overrides = {path: toml_or_text(text) for path, text in state["changes"].items()}
    return hsfl.plan(hsfl.load_scenario("paper", overrides))


def shows(page: Any, result: Any) -> None:
    text = f"cuts {', '.join(map(str, result.cuts))} · intervals {', '.join(map(str, result.intervals))}"
    expect(page.locator("#summary")).to_contain_text(text, timeout=WAIT_MS)


def test_a_slider_gives_the_plan_of_hsfl_plan(server, opened) -> None:
    page = opened(server.url)
    assert settled(page)["changes"] == {}
    shows(page, hsfl.plan("paper"))
    slider = page.locator('[data-path="tiers.device.uplink"] input[type=range]')
    for _ in range(3):
        slider.press("PageDown")
    state = settled(page)
    assert list(state["changes"]) == ["tiers.device.uplink"]
    result = planned(state)
    assert result.cuts != hsfl.plan("paper").cuts
    shows(page, result)
    assert f"--set '{next(iter(state['changes']))}=" in page.locator("#command-plan").text_content()
    page.get_by_role("button", name="Undo").click()
    while settled(page)["changes"]:
        page.get_by_role("button", name="Undo").click()
    shows(page, hsfl.plan("paper"))


def test_a_cut_by_hand_says_what_it_costs(server, opened) -> None:
    page = opened(server.url)
    settled(page)
    cut = page.get_by_role("slider", name="Cut 1, between device and edge")
    box = cut.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 20, box["y"] + box["height"] / 2 + 74, steps=4)  # two layers down
    page.mouse.up()
    own = settled(page)["own"]
    assert own["cuts"][0] < 4 and own["intervals"] is None
    mine, best = hsfl.evaluate("paper", own["cuts"]), hsfl.plan("paper")
    slower = f"{mine.objective_s / best.objective_s:.3f} × the optimum"
    expect(page.locator("#mine-text")).to_contain_text(slower)
    cut.press("ArrowUp")
    assert settled(page)["own"] != own
    every = page.get_by_label("Rounds between averages of device")
    every.fill("20")
    every.press("Enter")
    cuts = settled(page)["own"]["cuts"]
    mine = hsfl.evaluate("paper", cuts, settled(page)["own"]["intervals"])
    said = "never reaches the target" if not mine.reaches_target else f"{mine.objective_s / best.objective_s:.3f} ×"
    expect(page.locator("#mine-text")).to_contain_text(said)
    page.get_by_role("button", name="Back to the optimum").click()
    assert settled(page)["own"] is None
    expect(page.locator("#mine")).to_be_hidden()


def test_a_place_of_the_landscape_can_be_taken_by_keyboard(server, opened) -> None:
    page = opened(server.url)
    settled(page)
    land = page.get_by_role("application")
    land.press("ArrowLeft")
    land.press("Enter")
    assert settled(page)["own"] == {"cuts": [3, 7], "intervals": None}


def test_the_saved_scenario_plans_the_same(server, opened, tmp_path) -> None:
    page = opened(server.url)
    settled(page)
    field = page.get_by_label("training batch size")
    field.first.fill("48")
    field.first.press("Enter")
    result = planned(settled(page))
    with page.expect_download() as download:
        page.get_by_role("button", name="Save scenario.toml").click()
    download.value.save_as(tmp_path / "scenario.toml")
    assert hsfl.load_scenario(tmp_path / "scenario.toml").spec.training.batch_size == 48
    assert hsfl.plan(tmp_path / "scenario.toml").objective_s == result.objective_s
    shows(page, result)


def test_a_bad_value_gets_its_sentence_and_the_plan_stays(server, opened) -> None:
    page = opened(server.url)
    settled(page)
    field = page.locator('[data-path="tiers.device.downlink"]')
    field.locator("input[type=text]").fill("20 parsec")
    field.locator("input[type=text]").press("Enter")
    expect(field.get_by_role("alert")).to_contain_text('tiers.device.downlink = "20 parsec": unknown unit')
    shows(page, hsfl.plan("paper"))
    field.locator("input[type=text]").fill("200 Mbps")
    field.locator("input[type=text]").press("Enter")
    shows(page, planned(settled(page)))
    expect(field.get_by_role("alert")).to_be_hidden()


def test_what_a_scenario_lacks_can_be_filled_in(opened) -> None:
    """Constants of the bound may be absent; then there is no plan to begin with."""
    missing = {"convergence.smoothness": None, "convergence.target": None}
    lacking = serve(PlanPage(hsfl.load_scenario("paper", missing), None), host="127.0.0.1", port=0)
    lacking.start()
    page = opened(lacking.url)
    expect(page.locator("#problem")).to_contain_text("convergence.smoothness is missing")
    for name, text in (("smoothness", "20.1"), ("rounds", "1200")):
        field = page.locator(f'[data-path="convergence.{name}"] input[type=text]')
        field.fill(text)
        field.press("Enter")
    shows(page, planned(settled(page)))
    lacking.close()


def test_a_link_holds_what_a_window_shows_and_windows_do_not_meet(server, opened) -> None:
    first = opened(server.url)
    settled(first)
    box = first.locator('[data-path="tiers.edge.code"] select')
    box.select_option("int8")
    state = settled(first)
    second = opened(first.url)
    assert settled(second) == state and state["changes"] == {"tiers.edge.code": "int8"}
    shows(second, planned(state))
    second.get_by_role("button", name="Reset").click()
    assert settled(second)["changes"] == {}
    assert settled(first) == state
    expect(box).to_have_value("int8")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1024, "dark"), (390, "light")])
def test_the_page_fits_and_every_control_has_a_name(server, opened, width, scheme) -> None:
    page = opened(server.url, viewport={"width": width, "height": 850}, color_scheme=scheme)
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("model", "tiers", "memory", "round", "landscape", "intervals"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["width"] > 200 and box["height"] > 40 and box["x"] + box["width"] <= width, name
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input, select, [role=slider], [role=application]")]
            .filter((e) => !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim()))
            .map((e) => e.outerHTML)"""
    )
    assert nameless == []
    text, back = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    dark = [sum(map(int, re.findall(r"\d+", colour)[:3])) < 384 for colour in (text, back)]
    assert dark == ([True, False] if scheme == "light" else [False, True])


def test_alternatives_and_a_sweep_come_when_they_are_looked_at(server, opened) -> None:
    page = opened(server.url)
    settled(page)
    page.locator("#compare").scroll_into_view_if_needed()
    page.wait_for_selector("#compare table")
    names = page.locator("#compare tbody td:first-child").all_text_contents()
    assert names == ["HSFL", *(other.name for other in hsfl.compare("paper", hsfl.plan("paper")))]
    page.locator("#sweep-field").select_option("training.batch_size")
    page.wait_for_selector("#sweep svg[aria-label='Time to target over training.batch_size']")


class Pausing(hsfl.Callback):
    """Trains some rounds, and waits until it is told to go on."""

    def __init__(self, after: int) -> None:
        self.after, self.waits, self.goes_on = after, threading.Event(), threading.Event()

    def on_round(self, record: Any) -> None:
        if record.round == self.after:
            self.waits.set()
            self.goes_on.wait(120)


@contextmanager
def training(folder: Path, after: int) -> Iterator[Pausing]:
    fields = {"stopping.rounds": 6, "execution.evaluate_every": 2, "strategy.name": "fixed"}
    plan = {"strategy.cuts": [2, 3], "strategy.intervals": [2, 2, 1]}
    scenario = hsfl.load_scenario("mnist-mini", fields | plan)
    pausing = Pausing(after)
    thread = threading.Thread(target=lambda: hsfl.train(scenario, callbacks=[pausing], out=folder))
    thread.start()
    try:
        assert pausing.waits.wait(120)
        yield pausing
    finally:
        pausing.goes_on.set()
        thread.join(120)


def test_a_run_is_watched_while_it_trains(opened, tmp_path) -> None:
    with training(tmp_path / "first", after=5) as pausing:
        runs = serve(None, RunsPage([tmp_path]), host="127.0.0.1", port=0)
        runs.start()
        page = opened(runs.url)
        expect(page.locator("#states")).to_contain_text(re.compile(r"round [45] of 6"), timeout=WAIT_MS)
        points = page.locator("#accuracy-round circle")
        before = points.count()
        assert before >= 2
        pausing.goes_on.set()
        expect(page.locator("#states")).to_contain_text("ended by rounds after 6 rounds", timeout=WAIT_MS)
        expect(points).to_have_count(4, timeout=WAIT_MS)
    run = hsfl.Run.load(tmp_path / "first")
    expect(page.locator("#watching .lead")).to_contain_text(f"{run.summary.accuracy:.2%}".replace("%", " %"))
    expect(page.locator("[data-part=plans] svg")).to_have_count(2)
    runs.close()


def test_a_run_without_accuracy_shows_its_metrics(opened, tmp_path) -> None:
    folder = write_run(tmp_path / "numbers", rounds=20)
    lines = [
        RoundRecord(round=t, time_s=float(t), test_loss=1 / (1 + t), metrics={"mean absolute": 2.0 - t / 20})
        for t in range(0, 21, 5)
    ]
    (folder / "metrics.jsonl").write_text("".join(line.to_line() + "\n" for line in lines))
    runs = serve(None, RunsPage([folder]), host="127.0.0.1", port=0)
    runs.start()
    page = opened(runs.url)
    expect(page.locator("[id='metric mean absolute-round'] circle")).to_have_count(5, timeout=WAIT_MS)
    expect(page.locator("#accuracy-round")).to_be_hidden()
    expect(page.locator("#test_loss-round circle")).to_have_count(5)
    runs.close()
