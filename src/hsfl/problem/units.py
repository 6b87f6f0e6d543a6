"""Human units, at the edge only: text such as "80 Mbps" to SI numbers and back."""

from __future__ import annotations

import math
import re
from itertools import pairwise

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}

#: What each kind of quantity may be written in: unit -> value in the SI unit of the kind.
KINDS: dict[str, dict[str, float]] = {
    "compute": {
        f"{prefix}{unit}": scale
        for prefix, scale in _PREFIXES.items()
        for unit in ("FLOPS", "FLOP/s", "flops", "flop/s")
    },
    "rate": {
        f"{prefix}{unit}": scale * factor
        for prefix, scale in _PREFIXES.items()
        for unit, factor in (("bps", 1), ("bit/s", 1), ("b/s", 1), ("Bps", 8), ("B/s", 8))
    },
    "size": {
        f"{prefix}{unit}": scale * factor
        for prefix, scale in (_PREFIXES | _BINARY).items()
        for unit, factor in (("bit", 1), ("bits", 1), ("b", 1), ("B", 8))
    },
    "duration": {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0},
    "number": {},
}
#: No quantity of this world lies outside; inside, nothing computed from them overflows.
SMALLEST, LARGEST = 1e-12, 1e30
#: What a plain number of a kind is in, and how one is written as text.
SI = {"compute": "FLOP/s", "rate": "bit/s", "size": "bits", "duration": "seconds"}
EXAMPLES = {"compute": "0.5 TFLOPS", "rate": "80 Mbps", "size": "8 GB", "duration": "15 min"}
_REMEDY = {kind: f'write a number in {SI[kind]} or text such as "{EXAMPLES[kind]}"' for kind in SI}
_REMEDY["number"] = "write a plain number"
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*")


_DURATIONS = (("y", 365 * 86400), ("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def parse(value: object, kind: str) -> float:
    """A positive, finite quantity of the kind (a key of `KINDS`) in SI units; ValueError with the remedy."""
    remedy = _REMEDY[kind]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(remedy)
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if not match:
            raise ValueError(remedy)
        number, unit = match.groups()
        if unit and unit not in KINDS[kind]:
            alike = [known for known in KINDS[kind] if known.casefold() == unit.casefold()]
            hint = f" (did you mean {alike[0]}?)" if alike else ""
            raise ValueError(f"unknown unit {unit!r}{hint}; {remedy}")
        value = float(number) * (KINDS[kind][unit] if unit else 1.0)
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"it must be positive and finite; {remedy}")
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"it must lie between {SMALLEST:g} and {LARGEST:g}; {remedy}")
    return value


def format_bits(bits: float) -> str:
    """A size in bytes: 8e9 -> "1 GB"."""
    return _scaled(bits / 8, "B")


def format_rate(bps: float) -> str:
    """8e7 -> "80 Mbps"."""
    return _scaled(bps, "bps")


def format_flops(flops: float, unit: str = "FLOPS") -> str:
    """5e11 -> "500 GFLOPS"."""
    return _scaled(flops, unit)


def format_seconds(seconds: float) -> str:
    """A duration for people: 0.0032 -> "3.2 ms", 93784 -> "1 d 2 h"."""
    if not math.isfinite(seconds):
        return "never"
    if seconds < 1:
        for unit, scale in (("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
            if seconds >= scale:
                return f"{_digits(seconds / scale)} {unit}"
        return f"{seconds:.3g} s"
    if seconds < 60:
        return f"{_digits(seconds)} s"
    if seconds >= 1000 * _DURATIONS[0][1]:
        years = seconds / _DURATIONS[0][1]
        return f"{years:,.0f} y" if years < 1e9 else "more than a billion years"
    for (big, scale), (small, fine) in pairwise(_DURATIONS):
        whole = round(seconds / fine)  # rounded first, so that 3599.9 s is an hour and not 60 min
        if whole >= scale // fine:
            count, rest = divmod(whole, scale // fine)
            return f"{count} {big} {rest} {small}" if rest else f"{count} {big}"
    return f"{_digits(seconds)} s"


def _digits(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _scaled(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "no limit"
    for prefix, scale in reversed(_PREFIXES.items()):
        if prefix != "K" and abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
