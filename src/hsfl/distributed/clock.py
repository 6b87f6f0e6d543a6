"""The clock of a run on machines: seconds as they pass, beside those that the plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hsfl.distributed.machines import Machines
from hsfl.distributed.rates import Measured, work_of
from hsfl.engine.clock import SimulatedClock, Some
from hsfl.problem.plan import Plan
from hsfl.problem.problem import Problem
from hsfl.problem.profile import FloatArray
from hsfl.problem.system import System
from hsfl.problem.topology import Clients


class MeasuredClock:
    """Wall time of rounds, averages, moves and measurements; what crossed links is what the plan says."""

    def __init__(self, problem: Problem, machines: Machines, *, as_measured: bool) -> None:
        """`as_measured`: plans are made for the machines as they were measured, not as the scenario has them."""
        self._planned, self._machines, self.as_measured = SimulatedClock(problem), machines, as_measured
        self._seen, self.time_s = dict(machines.spent_s), 0.0
        self._measured = Measured()
        self._planned_parts: dict[str, float] = {}
        self._measured_parts: dict[str, float] = {}
        """Since they were last asked for."""

    @property
    def planned_s(self) -> float | None:
        """The seconds that the scenario's machines would have taken for the same."""
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

    def see(self, system: System, plan: Plan | None = None) -> None:
        self._planned.see(system, plan)

    def split(self, cuts: Sequence[int], rounds: int = 1, clients: Clients | None = None, least_s: float = 0.0) -> None:
        """Count a round or, if there was none, what measuring for a plan is charged."""
        machines, planned = self._machines, self._planned
        everybody = len(machines.took_part) == machines.num_clients
        compute_s = {} if not everybody else machines.compute_s  # by what they have to do for all clients
        self._measured.see(compute_s, machines.bps, work_of(planned.problem, machines.places, cuts))
        before = planned.time_s
        planned.split(cuts, rounds, clients, least_s)
        if machines.spent_s["round"] > self._seen["round"]:
            self._tick(planned.slowest_parts(cuts))
        else:
            self._tick({"plan": planned.time_s - before})

    def average(self, cuts: Sequence[int], tier: int, senders: Some = None, receivers: Some = None) -> None:
        before = self._planned.time_s
        self._planned.average(cuts, tier, senders, receivers)
        self._tick({"average": self._planned.time_s - before})

    def move(self, old: Sequence[int], new: Sequence[int], holders: Sequence[Sequence[int]] | None = None) -> None:
        before = self._planned.time_s
        self._planned.move(old, new, holders)
        self._tick({"move": self._planned.time_s - before})

    def wait(self, seconds: float) -> None:
        self._planned.wait(seconds)

    def round_s(self, cuts: Sequence[int]) -> FloatArray:
        return self._planned.round_s(cuts)

    def arrival_s(self, cuts: Sequence[int], clients: Clients) -> FloatArray:
        return self._planned.arrival_s(cuts, clients)

    def parts(self) -> dict[str, tuple[float, float]]:
        """The parts of the time since they were last asked for, planned and measured; their sums are all of it."""
        planned, measured = self._planned_parts, self._measured_parts
        self._planned_parts, self._measured_parts = {}, {}
        names = dict.fromkeys((*planned, *measured))
        return {name: (planned.get(name, 0.0), measured.get(name, 0.0)) for name in names}

    def _tick(self, planned: Mapping[str, float]) -> None:
        """Count the time that machines have spent since the last tick, for whichever command, and what was planned."""
        spent = self._machines.spent_s
        took = {kind: spent[kind] - self._seen[kind] for kind in spent}
        self._seen = dict(spent)
        self.time_s += sum(took.values())
        measured = {"average": took["average"], "move": took["move"], "plan": took["probe"]}
        if took["round"]:
            measured |= self._machines.slowest_chain()
            rest = took["round"] + took["save"] - sum(measured[name] for name in ("compute", "up", "down"))
            measured["rest"] = rest  # the command and its end on their way, what is saved, what was lost
        for parts, more in ((self._planned_parts, planned), (self._measured_parts, measured)):
            for name, seconds in more.items():
                if seconds:
                    parts[name] = parts.get(name, 0.0) + seconds
