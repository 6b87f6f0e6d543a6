"""FedAvg as a plain PyTorch loop: a model per client, one after the other, and the mean of their state_dicts."""

from __future__ import annotations

import copy

import torch
import work
from torch.nn import functional

args = work.arguments()
state, inputs, targets = work.read(args.work)
models = [work.lenet5() for _ in range(work.CLIENTS)]
optimizers = [torch.optim.SGD(model.parameters(), lr=work.LEARNING_RATE) for model in models]
world = copy.deepcopy(state)
clock = work.Clock(args)
for t in range(args.warmup + args.rounds):
    for n, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        model.load_state_dict(world)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[t % work.STORED, n]), targets[t % work.STORED, n]).backward()
        optimizer.step()
    states = [model.state_dict() for model in models]
    world = {key: torch.stack([s[key] for s in states]).mean(0) for key in world}
    clock.round(world.copy)
clock.report()
