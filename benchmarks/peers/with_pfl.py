"""FedAvg in pfl: SimulatedBackend and FederatedAveraging, in one process or (under torchrun) in several."""

from __future__ import annotations

from collections import Counter, OrderedDict

import torch
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

args = work.arguments()
weights, inputs, targets = work.read(args.work)
taken: Counter[int] = Counter()


class LeNet5(torch.nn.Sequential):
    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(x), len(x))}


class Timer(TrainingProcessCallback):
    def __init__(self) -> None:
        self.clock = work.Clock(args)

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.round(model.pytorch_model.state_dict)
        return False, Metrics()


def dataset(client: int) -> PyTorchTensorDataset:
    t = taken[client] % work.STORED
    taken[client] += 1
    return PyTorchTensorDataset((inputs[t, client], targets[t, client]), user_id=str(client))


model = LeNet5(OrderedDict(work.lenet5().named_children()))
model.load_state_dict(weights)
rounds = args.warmup + args.rounds
clients = FederatedDataset(dataset, MinimizeReuseUserSampler(list(range(work.CLIENTS))))
timer = Timer()
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=10 * rounds,  # only before the first round
        train_cohort_size=work.CLIENTS,
        val_cohort_size=None,
    ),
    SimulatedBackend(training_data=clients, val_data=clients),
    PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
    NNTrainHyperParams(
        local_batch_size=work.BATCH, local_num_epochs=1, local_num_steps=None, local_learning_rate=work.LEARNING_RATE
    ),
    callbacks=[timer],
    send_metrics_to_platform=False,
)
if pytorch_ops.distributed.global_rank == 0:
    timer.clock.report("pfl")
if pytorch_ops.distributed.world_size > 1:
    torch.distributed.destroy_process_group()
