"""Units: what people write becomes the right SI number, and numbers are shown so that people can read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.problem import units


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("0.5 TFLOPS", "compute", 5e11),
        ("3 GFLOP/s", "compute", 3e9),
        ("7 flops", "compute", 7.0),
        ("2.5e3 kflop/s", "compute", 2.5e6),
        ("1 PFLOPS", "compute", 1e15),
        ("1 EFLOPS", "compute", 1e18),
        ("80 Mbps", "rate", 8e7),
        ("80Mbps", "rate", 8e7),
        ("  80   Mbit/s ", "rate", 8e7),
        ("1 Gb/s", "rate", 1e9),
        ("10 MBps", "rate", 8e7),
        ("10 MB/s", "rate", 8e7),
        ("5 Kbps", "rate", 5e3),
        ("8 GB", "size", 6.4e10),
        ("8 GiB", "size", 8 * 8 * 2**30),
        ("4 Kib", "size", 4 * 1024),
        ("3 Mbit", "size", 3e6),
        ("3 bits", "size", 3.0),
        ("1 B", "size", 8.0),
        ("+.5", "rate", 0.5),
        ("12.", "size", 12.0),
        ("1e6", "compute", 1e6),
        (16, "rate", 16.0),
        (0.25, "number", 0.25),
        ("0.25", "number", 0.25),
    ],
)
def test_parse_gives_si(text, kind, expected):
    value = units.parse(text, kind)
    assert isinstance(value, float)
    assert value == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("kind", units.KINDS)
@pytest.mark.parametrize(
    "value",
    [
        *(0, 0.0, -0.0, -1, -2.5, math.nan, math.inf, -math.inf, 10**400, True, False, None),
        *("", " ", "fast", "M", "-3", "0", "1 2", "1,5", "1e400", "nan", "inf", "0x10", "1_000", "--1", "1 Mbps Mbps"),
        *([], [1], {}, b"1"),
    ],
)
def test_parse_refuses_what_is_no_positive_finite_quantity(value, kind):
    with pytest.raises(ValueError, match=r"write a (plain )?number"):
        units.parse(value, kind)


@pytest.mark.parametrize(
    ("text", "kind", "unit"),
    [
        ("5 Mbps", "compute", "Mbps"),
        ("5 TFLOP", "compute", "TFLOP"),
        ("80 mbps", "rate", "mbps"),
        ("80 GB", "rate", "GB"),
        ("8 GBs", "size", "GBs"),
        ("8 TFLOPS", "size", "TFLOPS"),
        ("2 x", "number", "x"),
    ],
)
def test_parse_names_the_unknown_unit(text, kind, unit):
    with pytest.raises(ValueError, match=rf"unknown unit {unit!r}( \(did you mean \w+\?\))?; write "):
        units.parse(text, kind)


@settings(derandomize=True, database=None)
@given(st.floats(1e-9, 1e9), st.sampled_from([(k, u) for k in units.KINDS for u in units.KINDS[k]]))
def test_every_unit_multiplies_the_number(number, kind_and_unit):
    kind, unit = kind_and_unit
    assert units.parse(f"{number!r} {unit}", kind) == number * units.KINDS[kind][unit]


def test_a_byte_is_eight_bits_under_every_prefix():
    for kind in ("rate", "size"):
        for unit, scale in units.KINDS[kind].items():
            if "B" in unit:
                assert scale == 8 * units.KINDS[kind][unit.replace("Bps", "bps").replace("B", "b")]


@settings(derandomize=True, database=None)
@given(st.floats(1.0, 9e20))
def test_formatted_quantities_parse_back(value):
    assert units.parse(units.format_rate(value), "rate") == pytest.approx(value, rel=1e-3)
    assert units.parse(units.format_flops(value), "compute") == pytest.approx(value, rel=1e-3)
    assert units.parse(units.format_bits(8 * value), "size") == pytest.approx(8 * value, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: units.format_bits(8e9), "1 GB"),
        (lambda: units.format_bits(12), "1.5 B"),
        (lambda: units.format_bits(0), "0 B"),
        (lambda: units.format_bits(math.inf), "no limit"),
        (lambda: units.format_rate(8e7), "80 Mbps"),
        (lambda: units.format_rate(1234.5), "1.234 kbps"),
        (lambda: units.format_flops(5e11), "500 GFLOPS"),
        (lambda: units.format_flops(2e6, "FLOPs"), "2 MFLOPs"),
    ],
)
def test_format(call, expected):
    assert call() == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (2.5e-6, "2.5 µs"),
        (0.0032, "3.2 ms"),
        (1, "1 s"),
        (12.34, "12.3 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (1152.4, "19 min 12 s"),
        (3600, "1 h"),
        (3600 + 125, "1 h 2 min"),
        (93784, "1 d 2 h"),
        (365 * 86400, "1 y"),
        (400 * 86400, "1 y 35 d"),
        (2000 * 365 * 86400, "2,000 y"),
        (math.inf, "never"),
    ],
)
def test_format_seconds(seconds, expected):
    assert units.format_seconds(seconds) == expected


@settings(derandomize=True, database=None)
@given(st.floats(1e-6, 1e10) | st.sampled_from([0.99951, 0.9996e-3, 59.96, 3599.9, 86399.9, 86400 * 365 - 1.0]))
def test_format_seconds_is_close_and_plain(seconds):
    text = units.format_seconds(seconds)
    scale = {"y": 365 * 86400, "d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}
    words = text.replace(",", "").split()
    shown = sum(float(number) * scale[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    assert shown == pytest.approx(seconds, rel=0.01)
    assert "e" not in text, "a duration for people has no exponent"
