"""Measured against planned: machines in network namespaces, with links of the scenario's rates. Needs root and tc.

Every machine has a namespace; between it and its parent, and between it and the fed server, there is a pair of virtual
devices, each end shaped (tbf) to the rate of its direction. All share this computer's cores, so the scenarios here have
links that take much longer than what is computed, and machines go before whatever else this computer does. `make
netlab` prints a table for benchmarks/machines.md.
"""

from __future__ import annotations

import argparse
import copy
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import hsfl
from hsfl.distributed.places import COORDINATOR, FED, Places
from hsfl.scenario.template import scenario_text

#: Frames with little overhead, and buckets of one of them: what a link carries at once is little beside a message.
MTU, BURST = 3000, 3100
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


def scenario(tiers: list[dict[str, Any]], cuts: list[int], rounds: int, place: Path) -> hsfl.Scenario:
    """mnist-mini on other machines, with mini-batches that take links seconds."""
    raw = copy.deepcopy(dict(hsfl.load_scenario("mnist-mini").raw))
    del raw["convergence"]
    raw["training"] = {**raw["training"], "batch_size": 256}
    raw |= {"tiers": tiers, "stopping": {"rounds": rounds}}
    raw["strategy"] = {"name": "fixed", "cuts": cuts, "intervals": [2] * len(cuts) + [1]}
    raw["execution"] = {"evaluate_every": 10**6, "checkpoint_every": 0, "device": "cpu"}
    place.write_text(scenario_text(raw), encoding="utf-8")
    return hsfl.load_scenario(place)


def command(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


class Lab:
    """Namespaces and links for the machines of a scenario."""

    def __init__(self, scenario: hsfl.Scenario) -> None:
        self.system = scenario.system
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
            command("ip", "-n", space, "link", "set", device, "mtu", MTU, "up")
            if rate is not None:
                shape = (
                    "stab",
                    "overhead",
                    -HEADERS,
                    "tbf",
                    "rate",
                    f"{round(rate)}bit",
                    "burst",
                    BURST,
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

    def start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        inside = ["ip", "netns", "exec", f"hsfl-{name}", sys.executable, "-m", "hsfl", *map(str, words)]
        return subprocess.Popen(inside, env=environment)


def run(tiers: list[dict[str, Any]], cuts: list[int], rounds: int) -> hsfl.Run:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        file = folder / "lab.toml"
        lab = Lab(scenario(tiers, cuts, rounds, file))
        (folder / "token").write_text("only-for-this-lab-0123456789\n")
        shown = ("--token", folder / "token")
        with lab.built():
            listen = ("--listen", "0.0.0.0:7000", "--out", folder / "run")
            started = [lab.start(COORDINATOR, "run", file, *listen, *shown)]
            for name in lab.places.nodes:
                parent, *fed = lab.places.uplinks(name)
                port = 7000 if parent == COORDINATOR else 7002
                words: list[object] = ["--parent", f"{lab.addresses[name, parent]}:{port}"]
                words += ["--fed", f"{lab.addresses[name, FED]}:7001"] if fed else []
                if lab.places.callers(name):
                    words += ["--listen", "0.0.0.0:7001" if name == FED else "0.0.0.0:7002"]
                started.append(lab.start(name, "node", file, "--name", name, "--state", folder / name, *words, *shown))
            try:
                if any(process.wait(900) for process in started):
                    raise SystemExit("a machine failed")
                return hsfl.Run.load(folder / "run")
            finally:
                for process in started:
                    process.kill()


def show(title: str, found: hsfl.Run) -> None:
    """Rounds without averages, and what averages add to the others; medians, without the first two rounds."""
    lines = found.metrics[2:]
    parts: dict[str, list[tuple[float, float]]] = {"round": [], "with averages": []}
    for before, after in pairwise(lines):
        assert before.planned_s is not None and after.planned_s is not None
        kind = "with averages" if after.averaged else "round"
        parts[kind].append((after.time_s - before.time_s, after.planned_s - before.planned_s))
    medians = {
        kind: [statistics.median(column) for column in zip(*pairs, strict=True)] for kind, pairs in parts.items()
    }
    medians["averages"] = [b - a for a, b in zip(medians["round"], medians.pop("with averages"), strict=True)]
    for kind, (measured, planned) in medians.items():
        print(f"| {title} | {kind} | {planned:.3f} s | {measured:.3f} s | {measured / planned - 1:+.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # machines inherit it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
    print("| machines | part | planned | measured | |\n|---|---|---|---|---|", flush=True)
    for title, (tiers, cuts) in TREES.items():
        show(title, run(tiers, cuts, rounds))


if __name__ == "__main__":
    main()
