"""FedAvg in hsfl: two tiers, every layer on the device, averaged after every step."""

from __future__ import annotations

import work

import hsfl
from hsfl.models import build, chain

args = work.arguments()
weights, inputs, targets = work.read(args.work)
model = build("lenet5")
model.load_state_dict(weights)
layers = list(chain(model, inputs[0, 0]))
hosts = [list(range(work.CLIENTS)), [0] * work.CLIENTS]
backend = hsfl.backend("stacked", layers, hosts, (len(layers),), {"name": "sgd", "lr": work.LEARNING_RATE})
clock = work.Clock(args)
for t in range(args.warmup + args.rounds):
    backend.step(inputs[t % work.STORED], targets[t % work.STORED])
    backend.average(0)
    clock.round(lambda: {key.split(".", 1)[1]: value for key, value in backend.global_state().items()})
clock.report()
