"""`stacked` in several processes: the first gives commands, and all of them do what they say, each for its clients.

Only the first process plans, evaluates, writes and reads files. What a command needs of the others goes by sums (see
`sharding`); what a file needs of them is fetched, entity by entity, and handed out to all when it is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch

from hsfl.engine import saving
from hsfl.engine.layer_copy import State
from hsfl.engine.sharding import Processes
from hsfl.engine.stacked import StackedBackend

M = TypeVar("M", bound=Callable[..., Any])


def _command(method: M) -> M:
    """A method that all processes run together, when the first one is asked to."""

    @functools.wraps(method)
    def told(self: ShardedBackend, *args: Any, **options: Any) -> Any:
        if self._obeys:
            return method(self, *args, **options)
        self.shard.processes.told((method.__name__, args, options))
        self._obeys = True
        try:
            return method(self, *args, **options)
        finally:
            self._obeys = False

    return cast(M, told)


class ShardedBackend(StackedBackend):
    """See the module's text. In the first process it is used like any other; the others `follow`."""

    def __init__(self, *args: Any, processes: Processes, **options: Any) -> None:
        """Rounds are not captured: processes have to meet in them."""
        super().__init__(*args, processes=processes, **options | {"capture": False})
        self._obeys = processes.rank > 0
        """Whether a command is being followed: what it calls is part of it."""
        self._read: Mapping[str, torch.Tensor] = {}
        """What the first process has read of a file, while it hands it out."""

    def follow(self) -> Any:
        """Do what the first process says, until it ends: what it says then."""
        while True:
            command, *rest = self.shard.processes.told()
            if command is None:
                return rest[0]
            args, options = rest
            getattr(self, command)(*args, **options)

    train_round = _command(StackedBackend.train_round)
    step = _command(StackedBackend.step)
    move = _command(StackedBackend.move)
    recode = _command(StackedBackend.recode)
    rebatch = _command(StackedBackend.rebatch)
    drift = _command(StackedBackend.drift)
    probe = _command(StackedBackend.probe)
    global_state = _command(StackedBackend.global_state)
    _average = _command(StackedBackend._average)
    _resume = _command(StackedBackend._resume)

    def _held(self, tier: int, entity: int) -> tuple[State, State]:
        if self._obeys or self.shard.row(tier, entity) is not None:
            return super()._held(tier, entity)
        return self._fetched(tier, entity)

    @_command
    def _fetched(self, tier: int, entity: int) -> tuple[State, State]:
        """In the first process, what an entity of another one holds; it cannot be written to."""
        processes, owner = self.shard.processes, self.shard.owner(tier, entity)
        found = State(), State()
        if processes.rank in (0, owner):
            row = self.shard.row(tier, entity) if processes.rank else 0  # names, shapes and types are those of any
            assert row is not None
            for state, into in zip(self._tiers[tier].named(row), found, strict=True):
                into.update((key, processes.fetched(value, owner)) for key, value in state.items())
        return found

    def _take(self, cuts: Sequence[int], about: saving.About, tensors: Mapping[str, torch.Tensor]) -> None:
        self.move(cuts)
        self.attendance.restore(about.attendance, about.round, cuts)
        self._resume(about.round, about.seed)
        self._read = tensors
        self._hand_out([(key, value.shape, value.dtype) for key, value in tensors.items()])
        self._read = {}

    @_command
    @torch.no_grad()
    def _hand_out(self, names: Sequence[tuple[str, torch.Size, torch.dtype]]) -> None:
        """What the first process has read of a file, to all who hold it."""
        own = self._kept()
        for key, shape, dtype in names:
            found = self.shard.processes.given(self._read.get(key, torch.empty(shape, dtype=dtype)))
            for value in own.get(key, ()):
                value.copy_(found)
