"""Measured against planned: machines in network namespaces, with links of the scenario's rates. Needs root and tc.

Every machine has a namespace; between it and its parent, and between it and the fed server, there is a pair of virtual
devices, each end shaped (tbf) to the rate of its direction. All share this computer's cores, so the scenarios here have
links that take much longer than what is computed, and machines go before whatever else this computer does. `make
netlab` prints tables for benchmarks/machines.md.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import hsfl
import hsfl.distributed.streams  # before machines are forked, which are many
from hsfl.distributed.describing import describe
from hsfl.distributed.places import COORDINATOR, FED, Places
from hsfl.distributed.process import run_node, set_threads
from hsfl.distributed.security import Security
from hsfl.report.measured import PARTS
from hsfl.scenario.template import scenario_text

#: Bytes of a frame; links have buckets of one of them: what they carry at once is little beside a message, which for
#: mnist-mini takes small ones.
MTU, SMALL_MTU = 3000, 1000
#: Of Ethernet, IP and TCP in every frame: a scenario's rates are of what is sent in them.
HEADERS = 14 + 20 + 32
FAST = {"compute": "10 TFLOPS"}
SLOW = {**FAST, "uplink": "250 kbps", "downlink": "500 kbps", "fed_uplink": "500 kbps", "fed_downlink": "1 Mbps"}
SENSOR = {**SLOW, "uplink": "2 Mbps", "downlink": "4 Mbps"}
GATEWAY = {**FAST, "uplink": "8 Mbps", "downlink": "8 Mbps", "fed_uplink": "2 Mbps", "fed_downlink": "2 Mbps"}
SERVER = {"name": "server", "entities": 1, **FAST}
#: A link for each: three sensors and a server; and links that several clients share: four sensors, two gateways.
TREES = {
    "3 sensors, a server": ([{"name": "sensor", "entities": 3, **SLOW}, SERVER], [3]),
    "4 sensors, 2 gateways, a server": (
        [{"name": "sensor", "entities": 4, **SENSOR}, {"name": "gateway", "entities": 2, **GATEWAY}, SERVER],
        [2, 3],
    ),
}


#: By how much the links of mnist-mini are slowed, so that they take longer than what its 26 machines compute here.
SLOWED = 20


def written(raw: dict[str, Any], cuts: list[int], rounds: int, chunks: int, place: Path) -> hsfl.Scenario:
    """A scenario with a fixed plan that is never evaluated."""
    raw["stopping"], raw["training"] = {"rounds": rounds}, {**raw["training"], "chunks": chunks}
    raw["strategy"] = {"name": "fixed", "cuts": cuts, "intervals": [2] * len(cuts) + [1]}
    raw["execution"] = {"evaluate_every": 10**6, "checkpoint_every": 0, "device": "cpu"}
    place.write_text(scenario_text(raw), encoding="utf-8")
    return hsfl.load_scenario(place)


def mnist_mini() -> dict[str, Any]:
    raw = copy.deepcopy(dict(hsfl.load_scenario("mnist-mini").raw))
    del raw["convergence"]
    return raw


def on_tree(tiers: list[dict[str, Any]], cuts: list[int], rounds: int, chunks: int, place: Path) -> hsfl.Scenario:
    """mnist-mini on other machines, with mini-batches that take links seconds."""
    raw = mnist_mini() | {"tiers": tiers}
    raw["training"] = {**raw["training"], "batch_size": 256}
    return written(raw, cuts, rounds, chunks, place)


def slowed(rounds: int, chunks: int, place: Path) -> hsfl.Scenario:
    """mnist-mini as it is, but for its links."""
    raw = mnist_mini()
    for tier in raw["tiers"]:
        for link in ("uplink", "downlink", "fed_uplink", "fed_downlink"):
            if link in tier:
                least, most = (float(rate.removesuffix(" Mbps")) for rate in tier[link]["uniform"])
                tier[link] = {"uniform": [f"{least / SLOWED} Mbps", f"{most / SLOWED} Mbps"]}
    return written(raw, [3, 4], rounds, chunks, place)


def command(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


class Lab:
    """Namespaces and links for the machines of a scenario."""

    def __init__(self, scenario: hsfl.Scenario, mtu: int) -> None:
        self.system, self.mtu = scenario.system, mtu
        self.places = Places(self.system.topology, [tier.name for tier in scenario.spec.tiers])
        self.addresses: dict[tuple[str, str], str] = {}
        """Where a machine finds another."""
        self.links = 0

    @contextmanager
    def built(self) -> Iterator[None]:
        spaces = [COORDINATOR, *self.places.nodes]
        try:
            for name in spaces:
                command("ip", "netns", "add", f"hsfl-{name}")
                command("ip", "-n", f"hsfl-{name}", "link", "set", "lo", "up")
            for name in self.places.nodes:
                for peer in self.places.uplinks(name):
                    self._link(name, peer)
            yield
        finally:
            for name in spaces:
                subprocess.run(["ip", "netns", "del", f"hsfl-{name}"], check=False, stderr=subprocess.DEVNULL)

    def _link(self, name: str, peer: str) -> None:
        self.links += 1
        up, down = f"u{self.links}", f"d{self.links}"
        own, other = f"hsfl-{name}", f"hsfl-{peer}"
        command("ip", "-n", own, "link", "add", up, "type", "veth", "peer", "name", down, "netns", other)
        subnet = f"10.77.{self.links}"
        rates = self._rates(name, peer)
        for space, device, host, rate in ((own, up, 2, rates[0]), (other, down, 1, rates[1])):
            command("ip", "-n", space, "addr", "add", f"{subnet}.{host}/30", "dev", device)
            command("ip", "-n", space, "link", "set", device, "mtu", self.mtu, "up")
            if rate is not None:
                shape = (
                    "stab",
                    "overhead",
                    -HEADERS,
                    "tbf",
                    "rate",
                    f"{round(rate)}bit",
                    "burst",
                    self.mtu + 100,
                    "latency",
                    "20s",
                )
                command("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", *shape)
        self.addresses[name, peer] = f"{subnet}.1"

    def _rates(self, name: str, peer: str) -> tuple[float | None, float | None]:
        """Bits per second towards the peer and back; None where the scenario has none."""
        if name == FED or peer == COORDINATOR:
            return None, None
        tier, number = self.places.entities[name]
        found = self.system.tiers[tier]
        if peer == FED:
            both = found.fed_uplink_bps[number], found.fed_downlink_bps[number]
        else:
            both = found.uplink_bps[number], found.downlink_bps[number]
        return tuple(float(rate) if rate < 1e12 else None for rate in both)  # type: ignore[return-value]

    def start(self, name: str, work: Callable[[], object]) -> int:
        """Do work in a process of its own, in the namespace of a machine: its process id."""
        sys.stdout.flush()
        if pid := os.fork():
            return pid
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the table is for itself
            with open(f"/run/netns/hsfl-{name}") as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0):
                    raise OSError(ctypes.get_errno(), "the namespace cannot be entered")
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


def run(made: Callable[[Path], hsfl.Scenario], mtu: int) -> hsfl.Run:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = made(folder / "lab.toml")
        (folder / "token").write_text("only-for-this-lab-0123456789\n")
        security = Security.read(FED, folder / "token", None)
        given, lab = describe(found, None), Lab(found, mtu)
        _ = given.largest_message
        started: set[int] = set()
        with lab.built():
            listen = {"cluster": "0.0.0.0:7000", "token": folder / "token", "out": folder / "run"}
            try:
                started.add(lab.start(COORDINATOR, lambda: hsfl.run(found, **listen)))
                for name in lab.places.nodes:
                    parent = lab.places.parent(name)
                    ports = {parent: 7000 if parent == COORDINATOR else 7002, FED: 7001}
                    dialled = {
                        peer: partial(str, f"{lab.addresses[name, peer]}:{ports[peer]}")
                        for peer in lab.places.uplinks(name)
                    }
                    own = "0.0.0.0:7001" if name == FED else "0.0.0.0:7002"
                    work = partial(run_node, name, given, folder / name, dialled, security, listen=own)
                    started.add(lab.start(name, work))
                while started:
                    pid, status = os.wait()
                    started.discard(pid)
                    if status:
                        raise SystemExit("a machine failed")
                return hsfl.Run.load(folder / "run")
            finally:
                for pid in started:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def show(title: str, found: hsfl.Run) -> None:
    """Rounds without averages, by parts, and what averages add to the others; medians, without the first two rounds."""
    lines = found.metrics[2:]
    rounds: list[tuple[float, float]] = []
    for before, after in pairwise(lines):
        assert before.planned_s is not None and after.planned_s is not None
        if not after.averaged:
            rounds.append((after.planned_s - before.planned_s, after.time_s - before.time_s))
    parts = {"round": rounds}
    for name in PARTS:
        if pairs := [(one.planned, one.measured) for line in lines[1:] if (one := line.parts.get(name)) is not None]:
            parts[name] = pairs
    for name, pairs in parts.items():
        planned, measured = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = f"{measured / planned - 1:+.1%}" if planned > 0.001 else ""
        print(f"| {title} | {name} | {planned:.3f} s | {measured:.3f} s | {ratio} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--chunks", type=int, default=1, help="of every mini-batch")
    parser.add_argument("--only", default="", help="tables whose title has this in it")
    given = parser.parse_args()
    set_threads(1)
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # machines inherit it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
    print("| machines | part | planned | measured | |\n|---|---|---|---|---|", flush=True)
    made: dict[str, Callable[[Path], hsfl.Scenario]] = {
        title: partial(on_tree, tiers, cuts, given.rounds, given.chunks) for title, (tiers, cuts) in TREES.items()
    }
    made[f"mnist-mini, links {SLOWED} times as slow"] = partial(slowed, min(given.rounds, 8), given.chunks)
    for title, one in made.items():
        if given.only in title:
            show(title, run(one, MTU if title in TREES else SMALL_MTU))


if __name__ == "__main__":
    main()
