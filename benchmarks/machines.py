"""Measure what machines cost over entities in one process, and streams over plain sockets: prints two tables.

Rounds: LeNet-5 on built-in MNIST images, mini-batches of 16, float32, one thread; medians of rounds.
Messages: a tensor from one process to another and a short answer, packed and unpacked, and its bytes over a socket.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import hsfl
from hsfl.distributed import wire_pb2 as wire
from hsfl.distributed.certificates import write_certificates
from hsfl.distributed.connections import tls_context
from hsfl.distributed.membership import Connected, Heard
from hsfl.distributed.security import Security
from hsfl.distributed.streams import Dialer, Inbox, Listener
from hsfl.distributed.tensors import pack, unpacked
from hsfl.records import RoundRecord

TREE = {
    "tiers.sensor.entities": 4,
    "tiers.gateway.entities": 2,
    "strategy.name": "fixed",
    "strategy.cuts": [2, 3],
    "execution.evaluate_every": 10**6,
    "execution.checkpoint_every": 0,
    "execution.device": "cpu",
}


class Rounds(hsfl.Callback):
    """When each round ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_round(self, record: RoundRecord) -> None:
        self.ends.append(time.perf_counter())

    def median_ms(self) -> float:
        """Without the first rounds, in which everything is made ready."""
        steps = [b - a for a, b in zip(self.ends[10:], self.ends[11:], strict=False)]
        return 1000 * statistics.median(steps)


def median_ms(how: str, rounds: int, intervals: list[int]) -> float:
    scenario = hsfl.load_scenario("mnist-mini", {**TREE, "strategy.intervals": intervals, "stopping.rounds": rounds})
    heard = Rounds()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if how == "machines":
            hsfl.run(scenario, callbacks=[heard], out=out)
        else:
            hsfl.train(scenario.with_overrides({"execution.backend": how}), callbacks=[heard], out=out)
    return heard.median_ms()


SIZES = {"1 kB": 10**3, "100 kB": 10**5, "1 MB": 10**6, "100 MB": 10**8}
LIMIT = 2 * 10**8
HELLO = wire.Hello(name="device-1", scenario="")
EDGE = "edge-1"
#: How the same bytes go: a tensor over a stream, and over a socket without any of hsfl, all into the same 128 kB, as
#: iperf does, or, like the stream, into memory of their own.
WAYS = ("stream", "socket, nothing kept", "socket, all kept")
BLOCK = 2**17


def security(name: str, keys: Path | None) -> Security:
    return Security("t" * 16) if keys is None else Security.read(name, None, keys)


def bare(plain: socket.socket, keys: Path | None, *, dialled: bool) -> socket.socket:
    """A socket as it is, or encrypted with the same certificates."""
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = tls_context(security(HELLO.name if dialled else EDGE, keys), listens=not dialled)
    if context is None:
        return plain
    return context.wrap_socket(plain, server_side=not dialled, server_hostname=EDGE if dialled else None)


def answer(ports: Any, keys: Path | None) -> None:
    """In another process: take tensors, over a stream and over a socket, and say so each time."""
    inbox = Inbox(8)
    listener = Listener("127.0.0.1:0", [HELLO.name], HELLO.scenario, inbox, security(EDGE, keys), LIMIT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports.send((listener.port, server.getsockname()[1]))
        plain = bare(server.accept()[0], keys, dialled=False)
        for size in SIZES.values():
            like, block = torch.empty(size // 4, device="meta"), memoryview(bytearray(BLOCK))
            for _ in range(repetitions(size)):
                while not isinstance(event := inbox.get(60), Heard):
                    pass
                unpacked(event.tensors[0], like)
                listener.send(HELLO.name, wire.Message(welcome=wire.Welcome()))
                del event
                got = 0
                while got < size:
                    got += plain.recv_into(block[: size - got])
                plain.sendall(b"!")
                into, got = torch.empty(size // 4).view(torch.uint8).numpy().data, 0
                while got < size:
                    got += plain.recv_into(into[got:])
                plain.sendall(b"!")


def repetitions(size: int) -> int:
    return 15 if size > 10**7 else 200


def messages(label: str, keys: Path | None) -> None:
    """Medians for every size, the ways by turns."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs, keys), daemon=True)
    process.start()
    stream_port, plain_port = ours.recv()
    inbox = Inbox(8)
    own = security(HELLO.name, keys)
    dialer = Dialer(EDGE, lambda: f"127.0.0.1:{stream_port}", HELLO, inbox, own, LIMIT, print)
    assert isinstance(inbox.get(10), Connected)
    with bare(socket.create_connection(("127.0.0.1", plain_port)), keys, dialled=True) as plain:
        for name, size in SIZES.items():
            tensor, took = torch.rand(size // 4), {way: [] for way in WAYS}
            data = tensor.view(torch.uint8).numpy().data
            for _ in range(repetitions(size)):
                for way in WAYS:
                    start = time.perf_counter()
                    if way == "stream":
                        dialer.send(wire.Message(mean=wire.Mean()), [pack(tensor)])
                        assert isinstance(inbox.get(60), Heard)
                    else:
                        plain.sendall(data)
                        plain.recv(1)
                    took[way].append(time.perf_counter() - start)
            stream, *sockets = (1000 * statistics.median(took[way]) for way in WAYS)
            found = [f"{stream:.2f}", *(f"{one:.2f} ({one / stream:.0%})" for one in sockets)]
            print(f"| {label}, {name} | {' | '.join(found)} |", flush=True)
    dialer.close()
    process.join(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3, help="of the ways to train; medians of their medians")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| ms for a tensor and an answer | {' | '.join(WAYS)} |\n|---|---|---|---|")
    messages("plain", None)
    with tempfile.TemporaryDirectory() as folder:
        write_certificates(Path(folder) / "keys", [EDGE, HELLO.name])
        messages("TLS", Path(folder) / "keys")
    print()
    print("| ms per round | never averaged | both tiers averaged after every round |\n|---|---|---|")
    ways = ("stacked", "reference", "machines")
    took: dict[tuple[str, int], list[float]] = {}
    for _ in range(given.turns):
        for how in ways:
            for interval in (10**6, 1):
                took.setdefault((how, interval), []).append(median_ms(how, given.rounds, [interval, interval, 1]))
    found = {key: statistics.median(values) for key, values in took.items()}
    for how in ways:
        print(f"| {how} | {found[how, 10**6]:.1f} | {found[how, 1]:.1f} |")
    ratios = [found["machines", interval] / found["reference", interval] for interval in (10**6, 1)]
    print(f"| machines / reference | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
