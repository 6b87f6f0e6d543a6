"""Plans, scenarios and runs in a notebook: tables, pictures, the page in a frame."""

from __future__ import annotations

import importlib.util
import urllib.error
import urllib.request
from html.parser import HTMLParser
from typing import Any

import pytest

import hsfl
from hsfl.errors import HsflError
from tests.runs.test_reading import write_run


class Cells(HTMLParser):
    """The texts of a table; tags must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_objects_are_tables_and_texts_are_escaped(tmp_path) -> None:
    result = hsfl.plan("paper")
    texts = Cells(result._repr_html_()).texts
    assert "4, 7" in texts and "5, 6, 1" in texts and "5 min 2 s (1,418 rounds)" in texts
    scenario = hsfl.load_scenario("paper", {"description": "<script>alert(1)</script>"})
    texts = Cells(scenario._repr_html_()).texts
    assert any("<script>" in text for text in texts) and "<script>" not in scenario._repr_html_()
    assert "device" in texts and '{ uniform = ["75 Mbps", "80 Mbps"] }' in texts
    run = hsfl.Run.load(write_run(tmp_path / "a <b>"))
    texts = Cells(run._repr_html_()).texts
    assert "90.00%, at best 90.00%" in texts and "HSFL" in texts
    assert Cells(hsfl.Run.load(write_run(tmp_path / "c", summary=False))._repr_html_()).texts.count("not ended") == 1


def test_a_comparison_is_a_table_against_the_plan() -> None:
    result = hsfl.plan("client-edge")
    others = hsfl.compare("client-edge", result)
    texts = Cells(others._repr_html_()).texts
    assert all(other.name in texts and other.what in texts for other in others)
    sync = next(other for other in others if other.name == "full sync")
    assert f"{sync.evaluation.objective_s / result.objective_s:.2f} ×" in texts


def test_metrics_are_a_data_frame_where_pandas_is_installed(tmp_path) -> None:
    run = hsfl.Run.load(write_run(tmp_path / "a"))
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(HsflError, match="pip install pandas"):
            run.frame()
    else:
        assert list(run.frame().columns) == list(run.columns()) and len(run.frame()) == len(run.metrics)


def test_pictures_are_axes(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    from matplotlib import pyplot
    from matplotlib.axes import Axes

    run = hsfl.Run.load(write_run(tmp_path / "a"))
    assert isinstance(hsfl.plot.objective("four-tier"), Axes)
    assert hsfl.plot.plan_sweep("paper", "training.batch_size", [8, 16])[0].get_ylabel() == "time to target"
    many = (hsfl.plot.accuracy(run, run), hsfl.plot.loss(run), hsfl.plot.plans(run), hsfl.plot.drift(run))
    assert [len(axes) for axes in many] == [3, 6, 2, 2]
    pyplot.close("all")


def test_the_page_is_served_until_it_is_closed(tmp_path) -> None:
    write_run(tmp_path / "a")
    for what in ("paper", hsfl.load_scenario("client-edge"), tmp_path, hsfl.Run.load(tmp_path / "a")):
        page = hsfl.explore(what, height=700)
        assert f'src="{page.url}"' in page._repr_html_() and 'height="700"' in page._repr_html_()
        with urllib.request.urlopen(page.url, timeout=20) as answer:
            assert "frame-ancestors *" in answer.headers["Content-Security-Policy"]
        page.close()
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(page.url, timeout=2)
    with pytest.raises(HsflError, match="no such file or built-in scenario"):
        hsfl.explore("papers")


def test_a_name_that_is_not_there_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hsfl.nothing  # noqa: B018


@pytest.mark.parametrize("what", [42, [], [42], None])
def test_what_cannot_be_explored_is_one_sentence(what) -> None:
    with pytest.raises(HsflError, match=r"^hsfl\.explore\(.*\): give a scenario, a run, or the folders of runs$"):
        hsfl.explore(what)
