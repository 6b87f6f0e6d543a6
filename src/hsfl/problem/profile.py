"""What one pass through each layer of a model costs, read from and written to CSV.

One row per layer and nothing cumulative; FLOPs and bits are for one sample, parameters for the layer.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hsfl.errors import ScenarioError
from hsfl.files import MAX_CSV, read_text
from hsfl.problem.units import LARGEST

FloatArray = npt.NDArray[np.float64]

#: Optimiser state, in copies of the parameters.
OPTIMIZER_STATE_COPIES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def freeze(owner: object) -> None:
    """Make the arrays of a frozen dataclass read-only, through views: nobody who is given it can change them."""
    for field in fields(owner):  # type: ignore[arg-type]
        if isinstance(value := getattr(owner, field.name), np.ndarray) and value.flags.writeable:
            view = value.view()
            view.setflags(write=False)
            object.__setattr__(owner, field.name, view)


@dataclass(frozen=True, eq=False)
class LayerProfile:
    """Per-layer costs and, where known, gradient statistics; every array has one entry per layer."""

    names: tuple[str, ...]
    forward_flops: FloatArray
    """FLOPs of the forward pass for one sample (rho, not cumulative)."""
    backward_flops: FloatArray
    """FLOPs of the backward pass for one sample (varpi, not cumulative)."""
    activation_bits: FloatArray
    """Size of the layer's output for one sample in memory (psi); `problem.codes` says what a link carries of it."""
    gradient_bits: FloatArray
    """Size of the gradient with respect to the layer's output for one sample in memory (chi)."""
    parameter_bits: FloatArray
    """Size of what averaging moves: parameters and persistent buffers (delta, not cumulative)."""
    optimizer_bits: FloatArray
    """Size of the optimiser's state."""
    buffer_bits: FloatArray | None = None
    """Size of the persistent buffers among `parameter_bits`, which no code shortens; None: there are none."""
    gradient_variance: FloatArray | None = None
    """sigma_l^2: the variance of each layer's mini-batch gradient."""
    gradient_second_moment: FloatArray | None = None
    """G_l^2: the mean squared norm of each layer's mini-batch gradient."""
    gradient_dissimilarity: FloatArray | None = None
    """zeta_l^2: how far the clients' mean gradients of each layer lie apart."""

    def __post_init__(self) -> None:
        freeze(self)

    def __repr__(self) -> str:
        return f"<LayerProfile: {len(self)} layers, {self.names[0]} to {self.names[-1]}>"

    def __len__(self) -> int:
        return len(self.names)

    def with_optimizer(self, optimizer: str) -> LayerProfile:
        """The same layers with the optimiser state that `optimizer` keeps."""
        return replace(self, optimizer_bits=OPTIMIZER_STATE_COPIES[optimizer] * self.parameter_bits)

    def to_csv(self) -> str:
        """The profile as CSV text; reading it back gives the same numbers."""
        columns = [c for c in REQUIRED_COLUMNS + OPTIONAL_COLUMNS if getattr(self, c) is not None]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["name", *columns])
        for index, name in enumerate(self.names):
            writer.writerow([name, *(_number(getattr(self, c)[index]) for c in columns)])
        return out.getvalue()

    @classmethod
    def from_csv(cls, path: Path | Traversable) -> LayerProfile:
        """Read a profile; a bad file raises `ScenarioError` naming the row, the column and the value."""
        try:
            text = read_text(path, MAX_CSV)
        except FileNotFoundError:
            raise ScenarioError(
                f"{path}: no such layer profile; write one with  hsfl profile MODEL --csv FILE"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ScenarioError(f"{path}: cannot be read as a CSV text file ({reason}); name one that can") from None
        try:
            rows = list(csv.reader(io.StringIO(text), strict=True))
        except csv.Error as error:
            raise ScenarioError(f"{path}: not a CSV file ({error})") from None
        return cls._from_rows(
            [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)], str(path)
        )

    @classmethod
    def _from_rows(cls, rows: Sequence[Sequence[str]], source: str) -> LayerProfile:
        header = rows[0] if rows else []
        known = ("name", *REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)
        if missing := [c for c in ("name", *REQUIRED_COLUMNS) if c not in header]:
            raise ScenarioError(
                f"{source}: column {_listed(missing)} missing; a profile needs {_listed(('name', *REQUIRED_COLUMNS))}"
            )
        if unknown := [c for c in header if c not in known]:
            raise ScenarioError(f"{source}: unknown column {_listed(unknown)}; known are {_listed(known)}")
        if len(set(header)) != len(header):
            raise ScenarioError(f"{source}: a column appears twice in the header; each may appear once")
        if len(rows) < 2:
            raise ScenarioError(f"{source}: no layers below the header; write one row per layer")
        values: dict[str, list[float]] = {c: [] for c in header if c != "name"}
        names = []
        for number, row in enumerate(rows[1:], start=1):
            if len(row) != len(header):
                raise ScenarioError(
                    f"{source}: layer {number} has {len(row)} cells; the header names {len(header)} columns"
                )
            for column, cell in zip(header, row, strict=True):
                if column == "name":
                    names.append(cell)
                else:
                    values[column].append(_parse_cell(cell, source, number, column))
        for number, part in enumerate(values.get("buffer_bits", [])):
            if part > (whole := values["parameter_bits"][number]):
                raise ScenarioError(
                    f"{source}: layer {number + 1}, column buffer_bits: {part:g} is more than its parameter_bits, "
                    f"{whole:g}, of which buffers are a part"
                )
        return cls(tuple(names), **{c: np.array(v) for c, v in values.items()})


_ARRAYS = [f for f in fields(LayerProfile) if f.name != "names"]
REQUIRED_COLUMNS = tuple(f.name for f in _ARRAYS if f.default is MISSING)
OPTIONAL_COLUMNS = tuple(f.name for f in _ARRAYS if f.default is not MISSING)


def _parse_cell(cell: str, source: str, layer: int, column: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value <= LARGEST:
        raise ScenarioError(
            f"{source}: layer {layer}, column {column}: {cell!r} is not a number of at least 0 and at most {LARGEST:g}"
        )
    return value


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
