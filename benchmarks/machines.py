"""Measure what machines cost over entities in one process, and streams over plain sockets: prints two tables.

Rounds: LeNet-5 on built-in MNIST images, mini-batches of 16, float32, one thread; medians of single rounds.
Messages: a tensor from one process to another and a short answer, packed and unpacked, and the same bytes over TCP.
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


def answer(ports: Any) -> None:
    """In another process: take tensors, over a stream and over a socket, and say so each time."""
    inbox = Inbox(8)
    listener = Listener("127.0.0.1:0", [HELLO.name], HELLO.scenario, inbox, Security("t" * 16), LIMIT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports.send((listener.port, server.getsockname()[1]))
        plain, _ = server.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in SIZES.values():
            like = torch.empty(size // 4, device="meta")
            for _ in range(repetitions(size)):
                while not isinstance(event := inbox.get(10), Heard):
                    pass
                unpacked(event.message.mean.values[0], like)
                listener.send(HELLO.name, wire.Message(welcome=wire.Welcome()))
            buffer = memoryview(bytearray(size))
            for _ in range(repetitions(size)):
                got = 0
                while got < size:
                    got += plain.recv_into(buffer[got:])
                plain.sendall(b"!")


def repetitions(size: int) -> int:
    return 5 if size > 10**7 else 100


def messages() -> None:
    """Medians for every size, over a stream and over a plain socket."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,), daemon=True)
    process.start()
    stream_port, plain_port = ours.recv()
    inbox = Inbox(8)
    dialer = Dialer("edge-1", lambda: f"127.0.0.1:{stream_port}", HELLO, inbox, Security("t" * 16), LIMIT, print)
    assert isinstance(inbox.get(10), Connected)
    print("\n| a tensor and an answer | stream | plain TCP | |\n|---|---|---|---|")
    with socket.create_connection(("127.0.0.1", plain_port)) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for label, size in SIZES.items():
            tensor, took = torch.rand(size // 4), []
            for _ in range(repetitions(size)):
                start = time.perf_counter()
                message = wire.Message()
                pack(message.mean.values.add(), tensor)
                dialer.send(message)
                assert isinstance(inbox.get(60), Heard)
                took.append(time.perf_counter() - start)
            data, plainly = bytes(size), []
            for _ in range(repetitions(size)):
                start = time.perf_counter()
                plain.sendall(data)
                plain.recv(1)
                plainly.append(time.perf_counter() - start)
            stream_s, plain_s = statistics.median(took), statistics.median(plainly)
            rate = (
                f"{plain_s / stream_s:.0%} of its rate"
                if size >= 10**6
                else f"{1e6 * (stream_s - plain_s):.0f} µs more"
            )
            print(f"| {label} | {1000 * stream_s:.2f} ms | {1000 * plain_s:.2f} ms | {rate} |", flush=True)
    dialer.close()
    process.join(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    messages()
    print()
    print("| ms per round | never averaged | both tiers averaged after every round |\n|---|---|---|")
    for how in ("stacked", "reference", "machines"):
        found = [median_ms(how, rounds, [interval, interval, 1]) for interval in (10**6, 1)]
        print(f"| {how} | {found[0]:.1f} | {found[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
