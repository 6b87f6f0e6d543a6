"""The entities of a tier as rows of flat tensors, with modules whose parameters and buffers are views of them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from hsfl.engine.averaging import Held, Tensors
from hsfl.problem.codes import BLOCK

_ALIGNMENT = 64  # elements: every parameter starts where vector loads can


@dataclass(frozen=True)
class Place:
    """Where a parameter or buffer of a layer lies in an entity's row."""

    layer: int
    name: str
    shape: torch.Size
    start: int
    channels_last: bool
    aliases: tuple[str, ...] = ()
    """Other names of the same tensor in the layer, where weights are tied."""

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + self.shape.numel())

    @property
    def end(self) -> int:
        return self.start + _up(self.shape.numel(), _ALIGNMENT)

    def view(self, row: torch.Tensor) -> torch.Tensor:
        """The tensor in a row, or in each of several rows."""
        flat, rows = row[..., self.columns], row.shape[:-1]
        if self.channels_last:
            first, channels, *size = self.shape
            return flat.view(*rows, first, *size, channels).movedim(-1, -1 - len(size))
        return flat.view(*rows, *self.shape)


class Sequences:
    """Parameters of some layers as they are written: one after another, those of a layer from a new block on."""

    def __init__(self, places: Sequence[Place], layers: Sequence[int]) -> None:
        self._parts: list[tuple[int, Place, Place]] = []
        """For each parameter the run of columns it is in, and its places there and among what is written."""
        end, layer = 0, None
        for run, columns in enumerate(_columns(places, layers)):
            for place in places:
                if columns.start <= place.start < columns.stop:
                    start = end if place.layer == layer else _up(end, BLOCK)
                    there = replace(place, start=place.start - columns.start)
                    self._parts.append((run, there, replace(place, start=start, channels_last=False)))
                    end, layer = start + place.shape.numel(), place.layer
        self._width = _up(end, BLOCK)

    def joined(self, rows: Tensors) -> torch.Tensor:
        """What is written of rows, given for each run of the layers' columns; 0 between the layers."""
        found = rows[0].new_zeros(len(rows[0]), self._width)
        for run, there, here in self._parts:
            here.view(found).copy_(there.view(rows[run]))
        return found

    def spread(self, written: torch.Tensor, rows: Tensors) -> None:
        """Put what is written back into rows."""
        for run, there, here in self._parts:
            there.view(rows[run]).copy_(here.view(written))


class FlatTier:
    """The entities of a tier: rows of parameters, float buffers and slots, and modules that view them."""

    def __init__(
        self,
        templates: Sequence[nn.Module],
        layers: range,
        slots: Sequence[str],
        like: torch.Tensor,
        *,
        keeps_last: bool,
        server: Sequence[str],
        channels_last: bool,
    ) -> None:
        """Make as many entities as `like` has rows, each a copy of the templates, in its type and on its device.

        `keeps_last`: the weights that all entities last had in common are kept, in one row. `server`: so is what the
        fed server keeps, by these names. `channels_last`: convolutions' weights lie in memory with their input channels
        next to each other, and activations follow.
        """
        self.layers = layers
        self._counts = any(whole_buffers(template) for template in templates)
        parameters = [list(t.named_parameters(remove_duplicate=False)) for t in templates]
        self.parameters = _places(layers, parameters, channels_last)
        self.buffers = _places(layers, [_float_buffers(t) for t in templates], False)
        self.weights = like.new_zeros(len(like), _width(self.parameters))
        self.statistics = like.new_zeros(len(like), _width(self.buffers))
        self.slots = {slot: torch.zeros_like(self.weights) for slot in slots}
        self.entities = [copy.deepcopy(list(templates)) for _ in range(len(like))]
        # .data: a version counter each, or changing one entity's tensors would invalidate another's graph.
        for j, entity in enumerate(self.entities):
            for place in self.parameters:
                owner, name = self._owner(entity, place)
                given, view = owner._parameters[name], place.view(self.weights[j])
                assert given is not None
                view.copy_(given.detach())
                parameter = nn.Parameter(view.data, requires_grad=given.requires_grad)
                for alias in (place.name, *place.aliases):
                    owner, name = self._owner(entity, place, alias)
                    owner._parameters[name] = parameter
            for place in self.buffers:
                owner, name = self._owner(entity, place)
                view = place.view(self.statistics[j]).data
                view.copy_(owner._buffers[name])  # type: ignore[arg-type]
                for alias in (place.name, *place.aliases):
                    owner, name = self._owner(entity, place, alias)
                    owner._buffers[name] = view
        self.last = self.weights[:1].clone() if keeps_last else None
        self.server = {slot: torch.zeros_like(self.weights[:1]) for slot in server}

    def _owner(self, entity: Sequence[nn.Module], place: Place, alias: str | None = None) -> tuple[nn.Module, str]:
        path, _, name = (alias or place.name).rpartition(".")
        return entity[place.layer - self.layers.start].get_submodule(path), name

    def trained(self, entity: int) -> Held:
        """An entity's parameters that are not frozen, and what lies beside them."""
        slots = {slot: self.trained_in(entity, flat[entity]) for slot, flat in self.slots.items()}
        last = [] if self.last is None else self.trained_in(entity, self.last[0])
        return Held([parameter for _, parameter in self._trained(entity)], [], slots, last)

    def trained_in(self, entity: int, row: torch.Tensor) -> Tensors:
        """What a row like the weights' has for each of an entity's parameters that are not frozen."""
        return [place.view(row) for place, _ in self._trained(entity)]

    def _trained(self, entity: int) -> list[tuple[Place, nn.Parameter]]:
        found = []
        for place in self.parameters:
            owner, name = self._owner(self.entities[entity], place)
            if (parameter := owner._parameters[name]) is not None and parameter.requires_grad:
                found.append((place, parameter))
        return found

    def take(
        self, layer: int, source: FlatTier, mean: Callable[[torch.Tensor], torch.Tensor], counting: int = 0
    ) -> None:
        """A layer from the tier that had it: rows as `mean` makes them of the source's, slots that both have alike.

        Buffers that are whole numbers, such as counters, come from one row, `counting`. What its hosts last had in
        common, and what the fed server keeps of it, comes as it is.
        """
        theirs, own = source.held([layer]), self.held([layer])
        pairs = list(zip(theirs.weights + theirs.buffers, own.weights + own.buffers, strict=True))
        for slot in (name for name in self.slots if name in source.slots):
            pairs += zip(theirs.slots[slot], own.slots[slot], strict=True)
        for rows, to in pairs:
            to.copy_(mean(rows))
        for last, rows in zip(own.last, theirs.last or theirs.weights, strict=False):
            last.copy_(rows[:1])
        before = source.server_slots([layer])
        for slot, kept in self.server_slots([layer]).items():
            for own_row, row in zip(kept, before.get(slot, ()), strict=False):
                own_row.copy_(row)
        whole = dict(whole_buffers(source.entities[counting][layer - source.layers.start]))
        for entity in self.entities:
            for name, buffer in whole_buffers(entity[layer - self.layers.start]):
                buffer.copy_(whole[name])

    def take_rows(self, source: FlatTier, rows: Sequence[int]) -> None:
        """All of a tier with the same layers and fewer rows: for each row here the one there that it is like."""
        for own, theirs in zip(self._flat(), source._flat(), strict=True):
            own.copy_(theirs[torch.tensor(rows, device=own.device)])
        if self.last is not None and source.last is not None:
            self.last.copy_(source.last)
        for slot, kept in self.server.items():
            kept.copy_(source.server[slot])
        for row, like in enumerate(rows if self._counts else ()):
            _count_as(self.entities[row], source.entities[like])

    def clear(self, rows: Sequence[int], slots: Sequence[str]) -> None:
        """Forget what some slots hold, in some rows."""
        for slot in (slot for slot in slots if slot in self.slots and rows):
            self.slots[slot][list(rows)] = 0.0

    def count_as(self, row: int, rows: Sequence[int]) -> None:
        """Some rows take over another's buffers that are whole numbers, such as counters: averages leave them alone."""
        if not self._counts:
            return
        for other in rows:
            _count_as(self.entities[other], self.entities[row])

    def _flat(self) -> list[torch.Tensor]:
        return [self.weights, self.statistics, *self.slots.values()]

    def held(self, layers: Sequence[int]) -> Held:
        """All entities for an averaging rule, one row each: some of their layers."""
        return Held(
            self._runs(self.weights, layers),
            [self.statistics[:, columns] for columns in _columns(self.buffers, layers)],
            {slot: self._runs(flat, layers) for slot, flat in self.slots.items()},
            self._runs(self.last, layers),
        )

    def server_slots(self, layers: Sequence[int]) -> dict[str, Tensors]:
        """What the fed server keeps of some layers, by name."""
        return {slot: self._runs(row, layers) for slot, row in self.server.items()}

    def _runs(self, flat: torch.Tensor | None, layers: Sequence[int]) -> Tensors:
        return [] if flat is None else [flat[:, columns] for columns in _columns(self.parameters, layers)]

    def keep_last(self, layers: Sequence[int]) -> None:
        """From now on all entities have the weights of these layers in common."""
        held = self.held(layers)
        for last, own in zip(held.last, held.weights, strict=False):
            last.copy_(own[:1])

    def state(self) -> list[torch.Tensor]:
        """All that training changes: rows, and buffers that are whole numbers."""
        whole = (buffer for entity in self.entities for layer in entity for _, buffer in whole_buffers(layer))
        return [*self._flat(), *whole]

    def named_rows(self, rows: torch.Tensor | None) -> list[OrderedDict[str, torch.Tensor]]:
        """`last`, or what the fed server keeps, by "LAYER.NAME", where there is any."""
        each = () if rows is None else rows
        return [OrderedDict((f"{p.layer}.{p.name}", p.view(row)) for p in self.parameters) for row in each]

    def named(self, entity: int) -> tuple[OrderedDict[str, torch.Tensor], OrderedDict[str, torch.Tensor]]:
        """An entity's parameters and buffers by "LAYER.NAME" and its optimiser state by "SLOT.LAYER.NAME"."""
        state = OrderedDict(
            (f"{number}.{name}", value)
            for number, layer in zip(self.layers, self.entities[entity], strict=True)
            for name, value in layer.state_dict().items()
        )
        slots = OrderedDict(
            (f"{slot}.{place.layer}.{place.name}", place.view(flat[entity]))
            for slot, flat in self.slots.items()
            for place in self.parameters
        )
        return state, slots


def whole_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Buffers that are whole numbers, such as counters."""
    return [(name, buffer) for name, buffer in module.named_buffers() if not buffer.is_floating_point()]


def _count_as(entity: Sequence[nn.Module], other: Sequence[nn.Module]) -> None:
    for layer, theirs in zip(entity, other, strict=True):
        for (_, buffer), (_, value) in zip(whole_buffers(layer), whole_buffers(theirs), strict=True):
            buffer.copy_(value)


def _float_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    named = module.named_buffers(remove_duplicate=False)
    return [(name, buffer) for name, buffer in named if buffer.is_floating_point()]


def _places(layers: range, named: Sequence[Iterable[tuple[str, torch.Tensor]]], channels_last: bool) -> list[Place]:
    """One place for every tensor, whatever the number of its names."""
    places: list[Place] = []
    for layer, tensors in zip(layers, named, strict=True):
        names: dict[int, tuple[torch.Tensor, list[str]]] = {}
        for name, tensor in tensors:
            names.setdefault(id(tensor), (tensor, []))[1].append(name)
        for tensor, (name, *aliases) in names.values():
            start = places[-1].end if places else 0
            places.append(Place(layer, name, tensor.shape, start, channels_last and tensor.dim() == 4, tuple(aliases)))
    return places


def _columns(places: Sequence[Place], layers: Sequence[int]) -> list[slice]:
    """Where layers lie in a row: a slice for each run of neighbours, so that a whole tier is one."""
    runs: list[slice] = []
    for place in places:
        if place.layer in layers:
            joins = bool(runs) and runs[-1].stop == place.start
            runs.append(slice(runs.pop().start if joins else place.start, place.end))
    return runs


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _width(places: list[Place]) -> int:
    return places[-1].end if places else 0
