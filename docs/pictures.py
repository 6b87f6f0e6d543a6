"""Draw the two pictures of docs/tutorials: docs/hsfl.svg, what HSFL is, and docs/bound.svg, what intervals cost.

    python docs/pictures.py [--check]

With --check nothing is written; the exit code is 1 when a picture is out of date. docs/bound.svg has the curves of the
built-in scenario "paper" with its refined drift model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

import hsfl
from hsfl.report.colours import tier_colour

DOCS = Path(__file__).parent
#: Both pictures bring their own ground, light or dark as the reader's system is, and so are readable on any page.
STYLE = """<style>
  text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 16px; fill: #1d232b; }
  .big { font-size: 20px; font-weight: 600; } .small { font-size: 15px; } .quiet { fill: #5b6570; }
  .on { fill: #10151b; } .ground { fill: #ffffff; stroke: #d5dae0; } .line { stroke: #4a545f; fill: none; }
  .grid { stroke: #d5dae0; } .head { fill: #4a545f; } .band { fill: #f3f5f8; }
  .stop { fill: #d55e00; fill-opacity: .14; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4e8ee; } .quiet { fill: #a3adb8; } .on { fill: #10151b; } .ground { fill: #14181d; stroke: #323a44; }
    .line { stroke: #b4bec9; } .grid { stroke: #323a44; } .head { fill: #b4bec9; } .band { fill: #1c2229; }
    .stop { fill-opacity: .25; }
  }
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
  orient="auto-start-reverse"><path class="head" d="M0 0 8 4 0 8z"/></marker></defs>"""


def page(width: int, height: int, title: str, told: str, parts: Sequence[str]) -> str:
    """A whole SVG file, with a title and a description for those who do not see it."""
    start = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="title told">\n<title id="title">{escape(title)}</title>\n'
        f'<desc id="told">{escape(told)}</desc>\n{STYLE}\n'
        f'<rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10"/>'
    )
    return "\n".join([start, *parts, "</svg>\n"])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{colour}"/>'


def arrow(x: float, y: float, to_x: float, to_y: float, dashed: bool = False, both: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    start = ' marker-start="url(#head)"' if both else ""
    ends = f'{start} marker-end="url(#head)"'
    return f'<path class="line" stroke-width="1.6" d="M{x:g} {y:g} {to_x:g} {to_y:g}"{ends}{dashes}/>'


#: Tiers of the first picture, from the devices up: name, height on the page, centres of its machines, layers.
TIERS = (
    ("devices", 410, (265, 365, 515, 615), (1, 2)),
    ("edge servers", 250, (315, 565), (3, 4)),
    ("cloud", 90, (440,), (5, 6)),
)


def hierarchy() -> str:
    """A model of six layers, cut over three tiers of machines, and the fed server."""
    parts = [text(30, 42, "One model, cut over three tiers", "big")]
    for tier, (name, y, centres, layers) in enumerate(TIERS):
        colour = tier_colour(tier)
        parts.append(f'<rect class="band" x="190" y="{y - 26}" width="500" height="104" rx="8"/>')
        parts.append(text(196, y - 6, name, "small quiet"))
        for k, layer in enumerate(reversed(layers)):
            parts += [box(45, y + 30 * k, 96, 26, colour), text(93, y + 18 + 30 * k, f"layer {layer}", "on", "middle")]
        for x in centres:
            parts += [box(x - 42, y + 4, 84, 56, colour), text(x, y + 28, "layers", "on small", "middle")]
            parts.append(text(x, y + 46, f"{layers[0]} and {layers[-1]}", "on small", "middle"))
        if tier:
            below = TIERS[tier - 1]
            parts.append(f'<path class="line" stroke-width="1.6" stroke-dasharray="2 4" d="M36 {y + 108}H150"/>')
            parts.append(text(93, y + 102, f"cut {tier}", "small quiet", "middle"))
            for k, x in enumerate(below[2]):
                host = centres[k * len(centres) // len(below[2])]
                at = host + (x - host) * 0.28
                parts.append(arrow(x - 8, below[1] + 1, at - 8, y + 64))
                parts.append(arrow(at + 8, y + 64, x + 8, below[1] + 1, dashed=True))
    parts.append('<rect class="line" x="770" y="235" width="160" height="86" rx="5" stroke-width="1.6"/>')
    parts += [text(850, 272, "fed server", "", "middle"), text(850, 294, "makes the means", "small quiet", "middle")]
    for tier, y, to in ((0, 430, 321), (1, 278, 278)):
        parts.append(arrow(690, y, 770 if tier else 800, to, both=True))
    parts += [text(730, 266, "every I₂", "small", "middle"), text(730, 300, "rounds", "small", "middle")]
    parts += [text(790, 400, "every I₁ rounds", "small"), text(700, 132, "one machine:", "small quiet")]
    parts.append(text(700, 150, "nothing to average", "small quiet"))
    parts.append(text(440, 484, "inputs stay here", "small quiet", "middle"))
    parts += [arrow(45, 540, 85, 540), text(95, 545, "activations up, every round", "small")]
    parts += [arrow(375, 540, 335, 540, dashed=True), text(385, 545, "gradients down, every round", "small")]
    parts += [arrow(625, 540, 665, 540, both=True), text(675, 545, "weights, every I rounds", "small")]
    told = (
        "A model of six layers is cut twice. Every device holds layers 1 and 2, every edge server 3 and 4, the cloud 5 "
        "and 6. In every round activations go up and gradients come down. A fed server averages the devices' layers "
        "every I1 rounds and the edge servers' layers every I2 rounds."
    )
    return page(960, 570, "Hierarchical split federated learning", told, parts)


def bound() -> str:
    """Seconds of a round, rounds to the target and their product, against the interval of both lower tiers."""
    scenario = hsfl.load_scenario("paper", {"convergence.drift": "refined"})
    cuts = hsfl.plan(scenario).cuts
    intervals = range(1, 81)
    found = [hsfl.evaluate(scenario, cuts, (interval, interval, 1)) for interval in intervals]
    reached = [k for k, one in enumerate(found) if one.rounds is not None]
    rounds = [float(found[k].rounds or 0) for k in reached]
    times = [found[k].objective_s for k in reached]
    last, best = reached[-1], min(reached, key=lambda k: found[k].objective_s)
    panels = (
        ("A round becomes shorter", "seconds", [s / r for s, r in zip(times, rounds, strict=True)], 0.6),
        ("More rounds are needed", "rounds to the target", rounds, 6000.0),
        ("Best is in between", "seconds to the target", times, 900.0),
    )
    parts = [text(30, 42, "What long intervals save, and what they cost", "big")]
    for number, (title, unit, values, top) in enumerate(panels):
        left, low, width, height = 70 + 305 * number, 330, 240, 220

        def at(interval: float, value: float, left: int = left, top: float = top) -> str:
            return f"{left + 240 * interval / intervals[-1]:.1f} {330 - 220 * value / top:.1f}"

        parts += [text(left, 78, title), text(left, 99, unit, "small quiet")]
        for share in (0, 1, 2, 3):
            y = low - height * share / 3
            parts.append(f'<path class="grid" d="M{left} {y:.1f}h{width}"/>')
            parts.append(text(left - 8, y + 5, f"{top * share / 3:,g}", "small quiet", "end"))
        for interval in (1, 20, 40, 60, 80):
            parts.append(text(left + width * interval / 80, low + 20, str(interval), "small quiet", "middle"))
        parts.append(text(left + width / 2, low + 42, "rounds between averages", "small quiet", "middle"))
        limit = left + width * intervals[last] / 80
        parts.append(
            f'<rect class="stop" x="{limit:.1f}" y="110" width="{left + width - limit:.1f}" height="{height}"/>'
        )
        curve = "L".join(at(intervals[k], value) for k, value in zip(reached, values, strict=True) if value <= top)
        colour = f' style="stroke: {tier_colour(4)}"' if number == 2 else ""
        parts.append(f'<path class="line" d="M{curve}" stroke-width="2.6"{colour}/>')
        if number == 2:
            x, y = at(intervals[best], found[best].objective_s).split()
            parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{tier_colour(4)}"/>')
            parts.append(text(float(x) + 16, float(y) - 12, f"{intervals[best]} rounds", "small", "middle"))
    caption = (
        "Averaging takes time, so averaging less often makes the average round shorter. But copies that are",
        "not averaged drift apart, and drift costs rounds; where it is shaded, the target is never reached.",
        "The planner finds the lowest point, over cuts and the intervals of all tiers at once. Here: the scenario",
        f"paper with the refined drift model, cuts {cuts[0]} and {cuts[1]}, "
        "the same interval for devices and edge servers.",
    )
    parts += [text(30, 408 + 22 * k, line, "small quiet") for k, line in enumerate(caption)]
    told = (
        f"Three curves over the rounds between averages. A round gets shorter, from {times[0] / rounds[0]:.2f} to "
        f"{times[-1] / rounds[-1]:.2f} seconds; the rounds to the target grow from {rounds[0]:,.0f} without "
        f"limit; their product is smallest, {found[best].objective_s:.0f} seconds, at {intervals[best]} rounds."
    )
    return page(960, 496, "The convergence bound and intervals", told, parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a picture is out of date")
    check = parser.parse_args(arguments).check
    stale = False
    for picture, made in ((DOCS / "hsfl.svg", hierarchy()), (DOCS / "bound.svg", bound())):
        if not check:
            picture.write_text(made, encoding="utf-8")
        elif not picture.is_file() or picture.read_text(encoding="utf-8") != made:
            print(f"{picture} is out of date; run  make docs", file=sys.stderr)
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
