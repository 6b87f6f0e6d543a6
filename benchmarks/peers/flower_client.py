"""Flower's client: a module of its own, so that its actors import it once and keep the model and the batches."""

from __future__ import annotations

import functools

import torch
import work
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional

app = ClientApp()


@functools.cache
def model(threads: int) -> torch.nn.Module:
    torch.set_num_threads(threads)
    return work.lenet5()


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    _, inputs, targets = work.read(config["work"])
    t, client = (config["server-round"] - 1) % work.STORED, context.node_config["partition-id"]
    local = model(config["threads"])
    local.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(local.parameters(), lr=work.LEARNING_RATE)
    optimizer.zero_grad()
    functional.cross_entropy(local(inputs[t, client]), targets[t, client]).backward()
    optimizer.step()
    metrics = MetricRecord({"num-examples": work.BATCH})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(local.state_dict()), "metrics": metrics}), reply_to=message
    )
