"""The clock of a run on machines: seconds as they pass, beside those that the plan says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hsfl.distributed.machines import Machines
from hsfl.distributed.rates import Measured, work_of
from hsfl.engine.clock import SimulatedClock
from hsfl.problem.codes import LinkCodes
from hsfl.problem.problem import Problem
from hsfl.problem.system import System


class MeasuredClock:
    """Wall time of rounds, averages, moves and measurements; what crossed links is what the plan says."""

    def __init__(self, problem: Problem, machines: Machines, *, as_measured: bool) -> None:
        """`as_measured`: plans are made for the machines as they were measured, not as the scenario has them."""
        self._planned, self._machines, self.as_measured = SimulatedClock(problem), machines, as_measured
        self._seen, self.time_s = machines.seconds, 0.0
        self._measured = Measured()

    @property
    def planned_s(self) -> float | None:
        """What the scenario's machines would have taken for the same."""
        return self._planned.time_s

    @planned_s.setter
    def planned_s(self, seconds: float | None) -> None:
        self._planned.time_s = self.time_s if seconds is None else seconds  # a run that was simulated goes on

    @property
    def problem(self) -> Problem:
        problem = self._planned.problem
        if not self.as_measured:
            return problem
        return replace(problem, system=self._measured.system(problem.system, self._machines.places))

    @property
    def bits(self) -> dict[str, int]:
        return self._planned.bits

    @bits.setter
    def bits(self, bits: dict[str, int]) -> None:
        self._planned.bits = bits

    @property
    def bytes(self) -> dict[str, int]:
        return self._planned.bytes

    def see(self, system: System, codes: Sequence[LinkCodes] | None = None) -> None:
        self._planned.see(system, codes)

    def split(self, cuts: Sequence[int], rounds: int = 1) -> None:
        machines, problem = self._machines, self._planned.problem
        self._measured.see(machines.compute_s, machines.bps, work_of(problem, machines.places, cuts))
        self._planned.split(cuts, rounds)
        self._tick()

    def average(self, cuts: Sequence[int], tier: int) -> None:
        self._planned.average(cuts, tier)
        self._tick()

    def move(self, old: Sequence[int], new: Sequence[int]) -> None:
        self._planned.move(old, new)
        self._tick()

    def _tick(self) -> None:
        now = self._machines.seconds
        self.time_s, self._seen = self.time_s + now - self._seen, now
