"""Numbers and names as people say them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from hsfl.problem.plan import NEVER
from hsfl.problem.system import System
from hsfl.problem.units import format_seconds
from hsfl.records import ForecastRecord, RoundRecord


def counted(count: int, name: str) -> str:
    """So many of a thing: "1 edge", "20 sensors", "2 boxes", "3 factories"; a name that is a plural stays."""
    return f"{count:,} {name if count == 1 else _plural(name)}"


def each_round(mini_batches: int | None) -> str:
    """What a plan says besides its cuts and intervals, where that is planned: "; 4 mini-batches a round"."""
    return "" if mini_batches is None else f"; {counted(mini_batches, 'mini-batch')} a round"


def _plural(name: str) -> str:
    if not name[-1:].isalpha() or (name[-1] in "sS" and name[-2:].lower() != "ss"):
        return name
    if name.lower().endswith(("ss", "x", "ch", "sh")):
        return f"{name}es"
    if name.lower().endswith("y") and name[-2:-1].lower() not in ("", *"aeiou"):
        return f"{name[:-1]}ies"
    return f"{name}s"


def numbers(values: Sequence[int]) -> str:
    """Cuts or intervals: "5, 6, never"."""
    return ", ".join("never" if value >= NEVER else str(value) for value in values)


def finite(values: Iterable[float]) -> list[float | None]:
    """For JSON, which has neither infinity nor NaN."""
    return [float(value) if math.isfinite(value) else None for value in values]


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def forecast_text(forecast: ForecastRecord) -> str:
    """When a loss will be reached: "loss 0.1 in 320 rounds (250 to 510), 1 min 20 s simulated"."""
    if forecast.rounds is None or forecast.seconds is None:
        least = "" if forecast.low is None else f" (at least {forecast.low:,} rounds)"
        return f"loss {forecast.loss:g} not in sight{least}"
    high = "?" if forecast.high is None else f"{forecast.high:,}"
    time = f"{format_seconds(forecast.seconds)} simulated"
    return f"loss {forecast.loss:g} in {counted(forecast.rounds, 'round')} ({forecast.low:,} to {high}), {time}"


def both(words: Sequence[str]) -> str:
    """All of them: "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def codes_text(system: System, tier: int) -> str:
    """How a tier's links write what they carry: "int4", or "↑ int4, ↓ int8, average fp32"."""
    own, codes = system.tiers[tier], system.tiers[tier].codes
    ways = ("up", "down") if tier < len(system.tree) - 1 else ("to tail", "back")
    names = {} if tier == system.num_tiers - 1 else dict(zip(ways, (codes.up.name, codes.down.name), strict=True))
    return _links(names | ({"average": codes.average.name} if own.entities > 1 else {}))


def planned_codes(codes: Sequence[Mapping[str, str]]) -> str:
    """The codes of a plan, for every tier in which any are planned: "int4", or "int4 | ↑ int4, ↓ int8"."""
    tiers = [_links(own) for own in codes if own] or [""]
    return tiers[0] if len(set(tiers)) == 1 else " | ".join(tiers)


def _links(names: Mapping[str, str]) -> str:
    if len(set(names.values())) == 1:
        return next(iter(names.values()))
    return ", ".join(f"{_ARROWS.get(link, link)} {name}" for link, name in names.items())


_ARROWS = {"up": "↑", "down": "↓"}


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def left_out(late: Mapping[str, int]) -> str:
    """Who was left out of how many rounds, the latest first."""
    ranked = sorted(late.items(), key=lambda item: (-item[1], item[0]))
    return some([f"{name} of {counted(count, 'round')}" for name, count in ranked])


def reached(line: RoundRecord) -> dict[str, str]:
    """What an evaluation found, by name: the accuracy or, where there is none, the test loss; and all other metrics."""
    if line.accuracy is not None:
        found = {"accuracy": f"{line.accuracy:.2%}"}
    else:
        found = {} if line.test_loss is None else {"test loss": f"{line.test_loss:.4g}"}
    return found | {name: f"{value:.4g}" for name, value in line.metrics.items() if value is not None}
