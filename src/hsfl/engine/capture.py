"""Whole rounds as CUDA graphs: recorded once with several streams inside, then replayed by one call each.

A round of small entities is hundreds of small kernels. Launched one by one they wait for Python; in a graph they do
not, and kernels of different entities run side by side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")

#: A point in a stream's work; None where there are no streams.
Point = torch.cuda.Event | None
_LANES = 8
#: The first pass lets cuDNN search and libraries set up, the second runs as it will be recorded.
_WARM_UPS = 2


class CaptureError(Exception):
    """The work cannot be recorded; nothing has changed."""


@functools.cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    """One for recording and those for entities; for good, because cuBLAS keeps a workspace for every stream it saw."""
    return [torch.cuda.Stream(device) for _ in range(1 + _LANES)]


class Lanes:
    """What the entities of a tier run on side by side: streams while a round is recorded, else one after the other."""

    def __init__(self, device: torch.device, *, streams: bool = False) -> None:
        """`streams`: for a recording; otherwise all work stays on the current stream, or on the CPU."""
        self._streams = _streams(device)[1:] if streams else []
        self._used: dict[int, torch.cuda.Stream] = {}

    def mark(self) -> Point:
        """The work given to the current stream so far."""
        if not self._streams:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def each(self, work: Callable[[int], T], after: Sequence[Iterable[Point]]) -> tuple[list[T], list[Point]]:
        """`work(j)` for every entity j of a tier, each after the marks of what it depends on; results and own marks."""
        count = len(after)
        if not self._streams:
            return [work(j) for j in range(count)], [None] * count
        results, done = [], []
        for j, marks in enumerate(after):
            lane = j % len(self._streams)
            stream = self._used[lane] = self._streams[lane]
            with torch.cuda.stream(stream):
                for mark in marks:
                    assert mark is not None
                    stream.wait_event(mark)
                results.append(work(j))
                done.append(self.mark())
        return results, done

    def join(self) -> None:
        """Let the current stream wait for those that were used: one that was not is no part of a recording."""
        for stream in self._used.values():
            torch.cuda.current_stream(stream.device).wait_stream(stream)


class CapturedRound:
    """Work that changes `state` in place and returns a tensor, recorded for inputs of the given shapes and types."""

    def __init__(
        self,
        work: Callable[..., torch.Tensor],
        inputs: Sequence[torch.Tensor],
        state: Sequence[torch.Tensor],
        device: torch.device,
    ) -> None:
        """Records `work(*inputs)` and runs none of it: `state` and torch's random state are as before, to the bit."""
        self._inputs = [torch.empty_like(tensor, device=device) for tensor in inputs]
        self._take(inputs)
        recorder, current = _streams(device)[0], torch.cuda.current_stream(device)
        saved, random = [tensor.clone() for tensor in state], torch.cuda.get_rng_state(device)
        recorder.wait_stream(current)
        try:
            with torch.cuda.stream(recorder):
                for _ in range(_WARM_UPS):
                    work(*self._inputs)
        finally:
            current.wait_stream(recorder)
            for tensor, value in zip(state, saved, strict=True):
                tensor.copy_(value)
            torch.cuda.set_rng_state(random, device)
        del saved
        self._graph = torch.cuda.CUDAGraph()
        try:
            # thread_local: other threads, such as loaders of data, may go on using the device meanwhile.
            with torch.cuda.graph(self._graph, stream=recorder, capture_error_mode="thread_local"):
                self._output = work(*self._inputs)
        except RuntimeError as error:
            # The end of a broken recording raises as well; what broke it came first.
            raise CaptureError(str(error.__context__ or error).partition("\n")[0]) from error

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """One run; the result is a tensor of its own and may still be on its way."""
        self._take(inputs)
        self._graph.replay()
        return self._output.clone()

    def _take(self, inputs: Iterable[torch.Tensor]) -> None:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given, non_blocking=True)
