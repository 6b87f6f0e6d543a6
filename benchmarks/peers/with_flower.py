"""FedAvg in Flower's simulation (Ray), with two actors of one CPU each.

The simulation sleeps 0.1 s between looks in two places: where it delivers messages to clients and where the server
collects replies. With `--events 1` both wait for an event instead: what a round costs without the sleeping.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from queue import Empty, Queue

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import flower_client
import work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.server.superlink.fleet.vce import vce_api
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

args = work.arguments(("--events", int, 0))
logging.getLogger("flwr").setLevel(logging.ERROR)
clock = work.Clock(args)
server = ServerApp()
sent, replies = threading.Event(), threading.Semaphore(0)


def deliver(state, queue: Queue, nodes_mapping: dict[int, int], f_stop: threading.Event) -> None:
    """vce_api.add_messages_to_queue, awake as soon as messages are sent."""
    while not f_stop.is_set():
        for node in nodes_mapping:
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)
        sent.wait(0.1)
        sent.clear()


def store(state, queue: Queue, f_stop: threading.Event) -> None:
    """vce_api.put_message_into_state, telling the server of every reply."""
    while not f_stop.is_set():
        try:
            state.store_message_res(queue.get(timeout=1.0))
            replies.release()
        except Empty:
            pass


def without_sleeping(grid: Grid) -> None:
    """Replace InMemoryGrid.send_and_receive."""

    def send_and_receive(messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        numbers = set(grid.push_messages(messages))
        sent.set()
        for _ in numbers:
            replies.acquire(timeout=timeout)
        return grid.pull_messages(numbers)

    grid.send_and_receive = send_and_receive


@server.main()
def main(grid: Grid, context: Context) -> None:
    def after(number: int, arrays: ArrayRecord) -> None:
        if number:
            clock.round(arrays.to_torch_state_dict)

    if args.events:
        without_sleeping(grid)
    FedAvg(fraction_evaluate=0.0, min_available_nodes=work.CLIENTS).start(
        grid=grid,
        initial_arrays=ArrayRecord(work.read(args.work)[0]),
        num_rounds=args.warmup + args.rounds,
        train_config=ConfigRecord({"work": args.work, "threads": args.threads}),
        evaluate_fn=after,
    )


if args.events:
    vce_api.add_messages_to_queue, vce_api.put_message_into_state = deliver, store
run_simulation(
    server,
    flower_client.app,
    num_supernodes=work.CLIENTS,
    backend_config={
        "init_args": {"num_cpus": 2},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    },
)
clock.report("flwr", "ray")
