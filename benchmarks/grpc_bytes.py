"""What a gRPC stream would carry, against a plain socket: 100 MB in pieces, put together in memory. Prints a table.

It is why streams are sockets of their own (distributed.connections). grpcio comes with grpcio-tools, of the extra dev.
"""

from __future__ import annotations

import multiprocessing
import queue
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

SIZE, BLOCK, TURNS = 10**8, 2**17, 7
PIECES = {"100 MB": SIZE, "10 MB": 10**7, "1 MB": 2**20, "256 kB": 2**18}
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.max_frame_size", 2**20),
    ("grpc.http2.lookahead_bytes", 2**27),
    ("grpc.http2.write_buffer_size", 2**26),
]


def attach(incoming: Iterator[bytes], context: Any) -> Iterator[bytes]:
    into, got = np.empty(SIZE, np.uint8), 0
    for piece in incoming:
        into[got : got + len(piece)] = np.frombuffer(piece, np.uint8)
        got += len(piece)
        if got == SIZE:
            yield b"!"
            into, got = np.empty(SIZE, np.uint8), 0


def answer(ports: Any) -> None:
    """In another process: say when all is there."""
    server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
    methods = {"Attach": grpc.stream_stream_rpc_method_handler(attach)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bytes", methods),))
    stream_port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ports.send((stream_port, listening.getsockname()[1]))
        plain, block = listening.accept()[0], memoryview(bytearray(BLOCK))
        got = 0
        while count := plain.recv_into(block):
            got += count
            if got == SIZE:
                got = 0
                plain.sendall(b"!")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,), daemon=True)
    process.start()
    stream_port, plain_port = ours.recv()
    data = memoryview(bytes(SIZE))
    waiting: queue.Queue[bytes | None] = queue.Queue()
    print("| pieces | gRPC, ms | socket, ms | of its rate |\n|---|---|---|---|")
    with (
        grpc.insecure_channel(f"127.0.0.1:{stream_port}", OPTIONS) as channel,
        socket.create_connection(("127.0.0.1", plain_port)) as plain,
    ):
        call = channel.stream_stream("/bytes/Attach")(iter(waiting.get, None))
        for label, size in PIECES.items():
            took: dict[str, list[float]] = {"stream": [], "socket": []}
            for _ in range(TURNS):
                start = time.perf_counter()
                for at in range(0, SIZE, size):
                    waiting.put(bytes(data[at : at + size]))  # it takes nothing else
                next(call)
                between = time.perf_counter()
                plain.sendall(data)
                plain.recv(1)
                took["stream"].append(between - start)
                took["socket"].append(time.perf_counter() - between)
            stream, bare = (1000 * statistics.median(took[way]) for way in ("stream", "socket"))
            print(f"| {label} | {stream:.0f} | {bare:.0f} | {bare / stream:.0%} |", flush=True)
        call.cancel()


if __name__ == "__main__":
    main()
