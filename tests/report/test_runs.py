"""Reports of runs: pictures, tables and the page say what the data say, and the page needs nothing else."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hsfl.errors import HsflError, MissingExtraError
from hsfl.records import RoundRecord, SpreadRecord
from hsfl.report.curves import draw_accuracy, draw_loss
from hsfl.report.groups import differences, run_labels
from hsfl.report.labels import draw_labels
from hsfl.report.page import Picture, headline, render, summary_rows, what_you_see
from hsfl.report.run_view import runs_view
from hsfl.report.runs import draw_drift, draw_plans, runs_table, write_report
from hsfl.runs.reading import Run, common_target
from tests.runs.test_reading import LAYERS, write_run

PNG = b"\x89PNG\r\n\x1a\n"
VOID = {"meta", "img", "br", "link"}
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "h1", "p", "section", "h2", "figure", "img"),
    *("figcaption", "div", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre"),
}


class Page(HTMLParser):
    """Refuses tags that are not closed in order; keeps addresses, the cells of tables and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "tags stay open"

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture
def three(tmp_path) -> list[Run]:
    """Linear accuracy to 90, 80 and 85 %, in 100, 200 and 400 s, evaluated every tenth round."""
    folders = [
        write_run(tmp_path / "planned"),
        write_run(tmp_path / "random", strategy="rma", speed=0.5, accuracy=0.8001),
        write_run(tmp_path / "fixed", strategy="fixed", speed=0.25, accuracy=0.85, summary=False),
    ]
    return [Run.load(folder) for folder in folders]


@pytest.fixture
def bare(tmp_path) -> Run:
    """No labels, no drift, no summary, no constants, a model of one's own."""
    folder = write_run(
        tmp_path / "bare", strategy="psl", rounds=20, labels=False, drift=False, summary=False, clients=3, plans=1
    )
    text = (folder / "scenario.toml").read_text().replace('name = "vgg11"', 'factory = "mine:model"')
    (folder / "scenario.toml").write_text(text)
    lines = (folder / "plans.jsonl").read_text().replace('"intervals": [5, 6, 1]', '"intervals": [1000000000, 6, 1]')
    (folder / "plans.jsonl").write_text(lines)
    return Run.load(folder)


def test_a_report_of_three_runs(three, tmp_path):
    out = tmp_path / "deep" / "out"
    paths = write_report(three, out)
    assert {p.name for p in paths} == {
        *("accuracy.png", "loss.png", "traffic.png", "labels.png", "report.html"),
        *(f"{kind}-{name}.png" for kind in ("plans", "drift") for name in ("planned", "random", "fixed")),
    }
    assert sorted(out.iterdir()) == sorted(paths)
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(PNG) and path.stat().st_size > 10_000
    text = (out / "report.html").read_text()
    page = Page(text)  # whole, and in need of nothing else
    assert "<script" not in text and "url(" not in text and "@import" not in text
    shown = {base64.b64decode(a.removeprefix("data:image/png;base64,")) for a in page.addresses}
    assert shown == {p.read_bytes() for p in paths if p.suffix == ".png"}
    assert headline(three) in page.text
    for label, run in zip(("planned", "random", "fixed"), three, strict=True):
        assert label in page.text and run.scenario_text in page.text
    assert "data.name=a <b>" in page.text  # the command, unharmed by the markup


def test_text_of_a_run_is_text_on_the_page(tmp_path):
    """Names, labels, reasons and the scenario, however they look: a page that is passed on must run nothing."""
    evil = "<script>alert(1)</script>'\"&"
    run = Run.load(write_run(tmp_path / "<img src=x onerror='a'>", plans=1, labels=False))
    run = replace(
        run,
        scenario_text=f"{run.scenario_text}# {evil}",
        plans=[run.plans[0].model_copy(update={"kept": evil, "strategy": evil})],
        environment=run.environment.model_copy(update={"platform": evil, "command": ["hsfl", evil]}),
        scenario={**run.scenario, "model": {"name": evil}},
    )
    text = render([run], [Picture("x.png", f"A caption {evil}", PNG, run)])
    page = Page(text)
    assert page.text.count(evil) >= 6 and "<img src=x" in page.text
    assert {name for name, _ in page.tags} <= TAGS
    allowed = {"charset", "name", "content", "http-equiv", "lang", "class", "scope", "src", "alt"}
    assert {name for _, attributes in page.tags for name in attributes} <= allowed  # no event, no style
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    policies = [found["content"] for name, found in page.tags if name == "meta" and "http-equiv" in found]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert text.index("Content-Security-Policy") < text.index("<title>")
    assert not re.search(r"https?://|url\(|@import", text)


def test_reports_are_the_same_every_time_and_leave_other_files_alone(three, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "accuracy.png").write_text("old")
    first = {p: p.read_bytes() for p in write_report(three[:1], out)}
    assert {p: p.read_bytes() for p in write_report(three[:1], out)} == first
    assert (out / "notes.txt").read_text() == "mine"
    assert {p.name for p in out.iterdir()} == {p.name for p in first} | {"notes.txt"}


def test_a_single_run_without_labels_drift_and_summary(bare, tmp_path):
    paths = write_report([bare], tmp_path / "out")
    assert [p.name for p in paths] == ["accuracy.png", "loss.png", "traffic.png", "plans.png", "report.html"]
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert "not ended" in page.text and "never, 6, 1" in page.text and "Constants" not in page.text
    assert "Not ended, so shown up to now: bare." in page.text


def test_a_single_run_has_plain_names(tmp_path):
    paths = write_report([Run.load(write_run(tmp_path / "run"))], tmp_path / "out")
    names = ["accuracy.png", "loss.png", "traffic.png", "labels.png", "plans.png", "drift.png", "report.html"]
    assert [p.name for p in paths] == names


def test_the_table_holds_the_numbers_of_the_data(three):
    header, rows = summary_rows(three)
    table = [dict(zip(header, row, strict=True)) for row in rows]
    assert table[0] == {
        "run": "planned",
        "strategy": "HSFL",
        "rounds": "100",
        "simulated time": "1 min 40 s",
        "last accuracy": "90.00 %",
        "best accuracy": "90.00 %",
        "time to 80.0 %": "1 min 30 s",  # 82 % at round 90; 74 % at round 80
        "sent": "1.2 GB",  # 100 rounds of 4 MB and 8 MB
        "last cuts": "5, 8",
        "last intervals": "9, 4, 1",
        "ended by": "rounds",
    }
    assert [row["time to 80.0 %"] for row in table] == ["1 min 30 s", "3 min 20 s", "6 min 40 s"]
    assert [row["ended by"] for row in table] == ["rounds", "rounds", "not ended"]
    page = Page(render(three, []))
    assert page.rows[:4] == [header, *rows]


def test_the_table_fits_a_terminal(three):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(runs_table(three))
    text = console.export_text()
    for cell in ("planned", "1 min 40 s", "80.01 %", "9, 4, 1", "not ended", "time to 80.0 %"):
        assert cell in text
    console.print(runs_table(three * 2))
    assert console.export_text().count("fixed") >= 2


def test_the_headline_compares_by_hand(three):
    assert headline(three) == (
        "planned is the first to reach 80.0 % test accuracy (the most that all 3 runs reach, rounded down to 0.5 "
        "points), after 1 min 30 s of simulated time: 2.22 times as fast as random and 4.44 times as fast as fixed."
    )
    assert headline(three[:1]) == (
        "planned has 90.00 % test accuracy (at best 90.00 %) after 100 rounds, 1 min 40 s of simulated time and "
        "1.2 GB sent."
    )
    assert "1.00 to 4.44 times as fast as the other 6" in headline([three[0], three[1], three[2], *three[:1] * 4])


@pytest.mark.parametrize(
    ("accuracies", "target"),
    [([0.29, 0.9], 0.29), ([0.2899, 0.9], 0.285), ([0.9049999, 0.99], 0.9), ([0.905, 0.905], 0.905), ([1.0, 1.0], 1.0)],
)
def test_the_common_target_is_rounded_down_and_reached(tmp_path, accuracies, target):
    runs = [_with_accuracies(tmp_path / str(i), [0.1, a, 0.2]) for i, a in enumerate(accuracies)]
    assert common_target(runs) == pytest.approx(target, abs=1e-12)
    assert all(run.time_to_accuracy(common_target(runs) or 2) == 1.0 for run in runs)


def test_no_progress_is_no_common_target(tmp_path):
    learnt, stuck = (_with_accuracies(tmp_path / n, a) for n, a in (("learnt", [0.1, 0.9]), ("stuck", [0.1, 0.1])))
    assert common_target([learnt, stuck]) is None
    assert headline([learnt, stuck]) == "The 2 runs reach no common test accuracy above the one they started with."
    assert not any("time to" in name for name in summary_rows([learnt, stuck])[0])
    Page(render([learnt, stuck], []))


def test_runs_that_were_never_evaluated_are_reported(tmp_path):
    folder = write_run(tmp_path / "run", drift=False)
    (folder / "metrics.jsonl").write_text('{"round": 1, "time_s": 2.0, "loss": NaN}\n{"round": 2, "time_s": 4.0}\n')
    run = Run.load(folder)
    assert headline([run]) == "run has not been evaluated after 2 rounds, 4 s of simulated time."
    assert len(write_report([run], tmp_path / "out")) == 5
    assert common_target([run, run]) is None


def test_an_accuracy_keeps_the_round_and_time_of_its_evaluation(tmp_path):
    """Of a run that has gone on since, it is not that of the last round."""
    folder = write_run(tmp_path / "run", rounds=399, every=1000, speed=10, summary=False)
    run = Run.load(folder)
    assert headline([run]) == (
        "run has 10.00 % test accuracy (at best 10.00 %) after 0 rounds, 0 s of simulated time; so far it has gone on "
        "to 399 rounds, 39.9 s of simulated time and 4.788 GB sent."
    )
    header, (row,) = summary_rows([run])
    assert dict(zip(header, row, strict=True))["last accuracy"] == "10.00 % at round 0, 0 s"
    assert "10.00 % at round 0, 0 s" in Page(render([run], [])).text


def test_a_single_run_has_no_common_accuracy(three):
    assert any(name.startswith("time to") for name in summary_rows(three)[0])
    assert not any(name.startswith("time to") for name in summary_rows(three[:1])[0])
    assert "time to" not in Page(render(three[:1], [])).text
    console = Console(width=80, file=io.StringIO())
    console.print(runs_table(three[:1]))
    assert "time to" not in console.file.getvalue()


def test_what_differs_is_named(three):
    assert differences(three) == ["strategy.name"]
    text = what_you_see(three)
    assert "the model vgg11 trained on the data mnist-mini over 4 devices → 2 edges → 1 cloud." in text
    assert re.search(r"Their scenarios differ in strategy\.name \(\S+, \S+, \S+\)\.", text)
    assert "Sent until then: planned 1.08 GB, random 1.2 GB, fixed 1.2 GB." in text
    assert "Their scenarios are the same." in what_you_see([three[0], three[0]])
    apart = replace(three[0], scenario=three[0].scenario | {"training": three[0].scenario["training"] | {"chunks": 4}})
    assert "differ in training.chunks (–, 4). A dash stands for what a scenario" in what_you_see([three[0], apart])
    assert "A dash" not in text


def test_the_page_has_the_codes_of_plans_where_they_are_planned(tmp_path):
    run = Run.load(write_run(tmp_path / "run", plans=2))
    noise = [[[0.0] * LAYERS, *([10.0**-k] * LAYERS for k in (7, 6, 5))]] * 2
    known = run.plans[-1].constants.model_copy(update={"coding_noise": noise})
    update = {"codes": [{"up": "int8", "down": "int4"}, {}, {}], "constants": known}
    coded = replace(run, plans=[plan.model_copy(update=update) for plan in run.plans])
    with_codes, without = (Page(render([one], [])).rows for one in (coded, run))
    assert sum("↑ int8, ↓ int4" in row for row in with_codes) == 2
    assert any("links" in row for row in with_codes) and not any("links" in row for row in without)
    assert "links in ↑ int8, ↓ int4." in render([coded], [])
    layers = next(row for row in with_codes if row[0] == "layer" and "noise of ↑ int4" in row)
    assert layers[-6:] == [f"noise of {link} {code}" for link in "↑↓" for code in ("bf16", "int8", "int4")]
    assert sum(row[-6:] == 2 * ["1e-07", "1e-06", "1e-05"] for row in with_codes) == LAYERS


def test_long_lists_of_plans_are_shortened(tmp_path):
    run = Run.load(write_run(tmp_path / "run", plans=50))
    page = Page(render([run], []))
    start = next(i for i, row in enumerate(page.rows) if row[0] == "after round")
    shown = [row[0] for row in page.rows[start + 1 : start + 42]]
    assert shown == [*(str(2 * i) for i in range(20)), "… 10 more", *(str(2 * i) for i in range(30, 50))]
    assert page.rows[start + 42][0] == "constant"


def test_constants_are_those_of_the_last_plan(tmp_path):
    page = Page(render([Run.load(write_run(tmp_path / "run"))], []))
    assert ["smoothness", "11.5"] in page.rows
    layers = [row for row in page.rows if row[1:] == ["0.25", "0.75", "0.125", "0.0625", "0"]]
    assert [row[0] for row in layers] == [str(l + 1) for l in range(LAYERS)]


def test_runs_of_one_name_stay_apart(tmp_path):
    runs = [
        Run.load(write_run(tmp_path / parent / "run", accuracy=0.8, clients=c)) for parent, c in (("a", 3), ("b", 5))
    ]
    assert run_labels(runs) == ["a/run", "b/run"]
    assert run_labels([runs[0], runs[0]]) == ["run (1)", "run (2)"]
    names = {p.name for p in write_report(runs, tmp_path / "out")}
    assert {"plans-a-run.png", "plans-b-run.png", "labels-a-run.png", "labels-b-run.png"} <= names  # unlike partitions
    assert "labels.png" not in names


def test_accuracy_is_drawn_against_time_rounds_and_bytes(three):
    panels = draw_accuracy(three).axes
    assert [a.get_xlabel() for a in panels] == ["simulated time, in minutes", "rounds", "sent, in GB"]
    for axes, ends in zip(panels, ([100 / 60, 200 / 60, 400 / 60], [100, 100, 100], [1.2, 1.2, 1.2]), strict=True):
        curves = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
        assert [line.get_label() for line in curves] == ["planned", "random", "fixed"]
        assert [line.get_xdata()[-1] for line in curves] == pytest.approx(ends)
        assert [line.get_ydata()[-1] for line in curves] == pytest.approx([90, 80.01, 85])
        assert len({(line.get_color(), str(line.get_linestyle())) for line in curves}) == 3


@pytest.mark.parametrize(
    ("speed", "unit", "ticks"),
    [
        (1.0, "seconds", [0, 30, 60, 90]),
        (0.1, "minutes", [0, 5, 10, 15]),
        (0.02, "minutes", [0, 15, 30, 45, 60, 75]),
        (0.01, "hours", [0, 0.5, 1, 1.5, 2, 2.5]),
        (0.001, "hours", [0, 6, 12, 18, 24]),
    ],
)
def test_times_have_round_ticks(tmp_path, speed, unit, ticks):
    axes = draw_accuracy([Run.load(write_run(tmp_path / "run", speed=speed))]).axes[0]
    assert axes.get_xlabel() == f"simulated time, in {unit}"
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == pytest.approx(ticks)


def test_training_loss_is_smoothed_and_test_loss_is_not(tmp_path):
    run = Run.load(write_run(tmp_path / "run", rounds=1000, every=100))
    figure = draw_loss([run])
    training, test = figure.axes[1].lines[0], figure.axes[4].lines[0]
    losses = [line.loss for line in run.metrics[1:]]
    assert training.get_ydata()[500] == pytest.approx(np.mean(losses[495:505]), rel=1e-3)
    assert len(training.get_ydata()) == 1000
    assert list(test.get_ydata()) == [line.test_loss for line in run.evaluations()]
    assert "mean over 10 rounds" in figure.get_suptitle()


def test_plans_are_drawn_as_bands_and_steps(tmp_path):
    run = Run.load(write_run(tmp_path / "run"))
    bands, steps = draw_plans(run).axes
    boundary = bands.lines[0]
    assert list(boundary.get_xdata()) == [0, 33, 66, 100]
    assert list(boundary.get_ydata()) == [3.5, 4.5, 5.5, 5.5]  # between layer 3 and layer 4, ...
    device, edge, _ = (band.get_paths()[0] for band in bands.collections)
    assert edge.contains_point((20, 4)) and not device.contains_point((20, 4))  # the first plan cuts after layer 3
    assert device.contains_point((40, 4)) and not edge.contains_point((40, 4))  # the second after layer 4
    assert bands.get_ylim() == (LAYERS + 0.5, 0.5)
    assert [t.get_text() for t in bands.get_legend().get_texts()] == ["device", "edge", "cloud"]
    assert [line.get_label() for line in steps.lines] == ["device", "edge"]  # there is only one cloud
    assert list(steps.lines[0].get_ydata()) == [5, 7, 9, 9]


def test_a_tier_that_is_never_averaged_has_no_line(bare):
    _, steps = draw_plans(bare).axes
    assert steps.lines[0].get_label() == "device (never)" and np.isnan(steps.lines[0].get_ydata()).all()


def test_labels_beyond_a_hundred_clients_are_counted_in_the_title(tmp_path):
    run = Run.load(write_run(tmp_path / "run", clients=250, rounds=10))
    figure = draw_labels(run.labels)
    assert "the first 100 of 250 clients" in figure.get_suptitle()
    image = figure.axes[0].images[0].get_array()
    assert image.shape == (10, 100)
    assert image[:, 0].filled(0).tolist() == [500, 500, *[0] * 8]


def test_dollars_are_no_formulas(tmp_path):
    folder = write_run(tmp_path / r"a$\frac$", rounds=10)
    names = [r"$\frac$", "$1", "$2$", *"3456789"]
    content = json.loads((folder / "labels.json").read_text())
    (folder / "labels.json").write_text(json.dumps(content | {"labels": names}))
    run = Run.load(folder)
    assert len(write_report([run, run], tmp_path / "out")) == 9
    figure = draw_labels(run.labels)
    figure.draw_without_rendering()
    assert [text.get_text().replace(r"\$", "$") for text in figure.axes[0].get_yticklabels()] == names


def test_letters_without_a_picture_are_said_in_one_line(command, tmp_path):
    folder = write_run(tmp_path / "run", rounds=10)
    content = json.loads((folder / "labels.json").read_text())
    (folder / "labels.json").write_text(json.dumps(content | {"labels": ["零", *"123456789"]}))
    ended = command("report", "run")
    assert ended.code == 0 and all(line.startswith("hsfl: Glyph") for line in ended.err.splitlines())


def test_drift_shows_what_is_positive(tmp_path):
    run = Run.load(write_run(tmp_path / "run"))
    device, edge = draw_drift(run).axes
    assert [len(axes.lines) for axes in (device, edge)] == [3, 3]
    assert device.get_yscale() == "log" and device.get_title() == "device"
    assert device.lines[0].get_ydata()[0] == 0.006
    assert np.isnan(edge.lines[0].get_ydata()).all() and np.isnan(edge.lines[1].get_ydata()).all()
    assert set(edge.lines[2].get_ydata()) == {0.4}


def test_bad_calls_are_said(tmp_path, monkeypatch):
    run = Run.load(write_run(tmp_path / "run"))
    with pytest.raises(HsflError, match="no run is given"):
        write_report([], tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(HsflError, match="choose another place"):
        write_report([run], tmp_path / "file" / "out")
    (run.folder / "metrics.jsonl").write_text("")
    with pytest.raises(HsflError, match=r"metrics.jsonl: holds no round yet"):
        write_report([Run.load(run.folder)], tmp_path / "out")
    for package in ("jinja2", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MissingExtraError, match="plot"):
            write_report([run], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("labels.json", '"0", ', "", "labels.json: counts[1] has 10 numbers for 9 labels"),
        ("scenario.toml", 'name = "edge"\n', "", "scenario.toml: tiers[2].name is missing"),
        (
            "plans.jsonl",
            '"cuts": [4, 7]',
            '"cuts": [4]',
            "the plan after round 33 has 1 cuts and 3 intervals for 3 tiers",
        ),
        ("metrics.jsonl", '"time_s": 4.0', '"time_s": 1e308', "metrics.jsonl: round 5 is at 5.0 s after 1e+308 s"),
        ("metrics.jsonl", '"time_s": 4.0', '"time_s": NaN', "metrics.jsonl: round 4 is at nan s after 3.0 s"),
        ("metrics.jsonl", '"accuracy": 0.18', '"accuracy": Infinity', "the accuracy of round 10 is inf, not a share"),
    ],
)
def test_a_damaged_run_ends_in_one_sentence(command, tmp_path, file, before, after, said):
    folder = write_run(tmp_path / "run")
    text = (folder / file).read_text()
    assert before in text
    (folder / file).write_text(text.replace(before, after, 1))
    ended = command("report", "run", "--out", "out")
    assert ended.code == 2 and ended.err.startswith("hsfl: run/") and ended.err.count("\n") == 1
    assert said in ended.err and not (tmp_path / "out").exists()


def test_reading_and_tables_load_neither_matplotlib_nor_torch():
    check = "import hsfl.report.runs, sys; print([m for m in ('torch', 'matplotlib', 'jinja2') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def _with_accuracies(folder: Path, accuracies: list[float]) -> Run:
    write_run(folder)
    lines = [{"round": t, "time_s": float(t), "accuracy": a, "test_loss": 1.0} for t, a in enumerate(accuracies)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run.load(folder)


def test_numbers_metrics_and_clients_are_drawn(tmp_path: Path) -> None:
    """A run without accuracy is told by its test loss; own metrics and clients have pictures of their own."""
    spread = [SpreadRecord.of([0.5 + n / 100 - r / 1000 for n in range(12)] + [float("nan")]) for r in range(3)]
    lines = [
        RoundRecord(
            round=10 * r,
            time_s=float(r),
            bytes={"device.up": 10 * r},
            loss=1.0 / (r + 1) if r else None,
            test_loss=2.0 / (r + 1),
            metrics={"worst": 3.0 - r},
            clients={"global": {"loss": spread[r]}, "own": {"loss": spread[r]}},
        )
        for r in range(3)
    ]
    folder = write_run(tmp_path / "run", summary=False)
    (folder / "metrics.jsonl").write_text("".join(line.to_line() + "\n" for line in lines))
    run = Run.load(folder)
    assert "has a test loss of 0.6667, worst 1 after 20 rounds" in headline([run])
    assert headline([run, run]).endswith("has the lowest test loss at the end, 0.6667.")
    header, rows = summary_rows([run])
    assert rows[0][header.index("best test loss")] == "0.6667" and "last accuracy" not in header
    names = [path.name for path in write_report([run], tmp_path / "report")]
    assert "accuracy.png" not in names and {"metrics.png", "clients.png", "loss.png"} <= set(names)
    shown = runs_view([run])
    assert shown["metrics"] == ["worst"] and shown["runs"][0]["metric worst"]["y"] == [3.0, 2.0, 1.0]
