"""The sections of a scenario file that training reads: data, optimiser, what executes it.

Like those of `scenario.schema`, they are all that `hsfl init`, docs/scenario.md and error messages are made from.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hsfl.scenario.field_types import (
    AUTO_MICRO_BATCHES,
    Duration,
    MicroBatches,
    NotNegative,
    Positive,
    Round,
    Section,
    named_or_own,
)


class ServerSection(Section):
    """How the fed server steps, where it makes more of an average than the mean."""

    learning_rate: Positive | None = Field(
        None, description="The server's step; by default 1 for fedavgm and 0.01 for the others.", examples=[0.01]
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="The server's momentum, with fedavgm; by default 0.9.", examples=[0.9]
    )
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] | None = Field(
        None, description="With fedadam, fedyogi and fedadagrad; by default [0.9, 0.99].", examples=[[0.9, 0.99]]
    )
    tau: Positive | None = Field(
        None,
        description="With these three: bounds their steps where little changes; by default 0.001.",
        examples=[1e-3],
    )


_ADAPTIVE = ("learning_rate", "betas", "tau")
#: The settings of the rules of averages with which the fed server steps.
SERVER_SETTINGS = {
    "fedavgm": ("learning_rate", "momentum"),
    "fedadam": _ADAPTIVE,
    "fedyogi": _ADAPTIVE,
    "fedadagrad": _ADAPTIVE,
}


class TrainingSection(Section):
    """How every client trains."""

    batch_size: int = Field(ge=1, le=10**9, description="Samples per client and mini-batch (b).")
    micro_batches: MicroBatches = Field(
        1,
        description="Mini-batches of every client in a round (k): their gradients are accumulated, and tiers work on "
        "one while others are on their way. A number; auto: planned, from 1 to 16; or a list such as [1, 2, 4], "
        "planned among these.",
    )
    chunks: int = Field(
        1,
        ge=1,
        le=10**9,
        description="In how many equal parts a mini-batch goes through the tiers, which then work at the same time; "
        "its gradient is the mean of theirs, so that rounds get shorter and training stays as it is. Divides "
        "batch_size.",
    )
    learning_rate: Positive = Field(
        description="Step of an update; with momentum counted (below) it must be at most 1/smoothness."
    )
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = Field(
        "sgd",
        description="sgd | momentum | adam | adamw: the optimiser's state takes 0, 1, 2 and 2 copies of the "
        "parameters, unless the layer profile says otherwise (optimizer_bits).",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None,
        description="With optimizer = momentum (default 0.9): the effective step is learning_rate / (1 - momentum).",
        examples=[0.9],
    )
    weight_decay: NotNegative = Field(0.0, description="Decay of the weights at every update.")
    clip: Positive | None = Field(
        None,
        description="The largest norm of a machine's gradient, the mean over its clients and all layers that it holds; "
        "a longer one is shortened to it. Machines clip on their own: none sees the layers of another.",
        examples=[1.0],
    )
    schedule: Annotated[str, named_or_own("constant", "cosine", "steps")] = Field(
        "constant",
        description="How the learning rate changes: constant, cosine (down to 0 at horizon), steps (times decay at "
        'each of decay_rounds) or your own: "package.module:function", which gives the factor for a round, counted '
        "from 0. Plans made while training take the step of the moment; hsfl plan takes learning_rate.",
    )
    warmup: int = Field(0, ge=0, le=10**9, description="Rounds in which the learning rate rises evenly to what it is.")
    horizon: Round | None = Field(
        None,
        description="With schedule = cosine: the round at which it ends; default: stopping.rounds. From there on the "
        "learning rate stays what it was last.",
        examples=[2000],
    )
    decay_rounds: Annotated[list[Round], Field(min_length=1)] | None = Field(
        None, description="With schedule = steps: after so many rounds each, rising.", examples=[[1000, 1500]]
    )
    decay: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="With schedule = steps: what is left of the learning rate each time (default 0.1).",
        examples=[0.5],
    )
    loss: Annotated[str, named_or_own("cross_entropy", "mse", "l1", "bce")] = Field(
        "cross_entropy",
        description="What is minimised: cross_entropy (of classes), mse, l1 (of numbers), bce (of scores and targets "
        'from 0 to 1) or your own: "package.module:function", which maps outputs and targets to a loss for every '
        "sample.",
    )
    metrics: list[Annotated[str, named_or_own("accuracy", "mse", "l1")]] | None = Field(
        None,
        description="What evaluations count beside the loss: accuracy, mse, l1 or your own functions, which map "
        "outputs and targets to a number for every sample; default: accuracy where targets are classes, else nothing.",
        examples=[["accuracy", "my_package.metrics:top5"]],
    )
    average_optimizer: bool = Field(
        False,
        description="Averaging a tier averages its optimiser's state too, such as momentum, which then also travels; "
        "otherwise every machine keeps its own.",
    )
    averaging: Literal["plain", "corrected", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad"] = Field(
        "plain",
        description="What an average does: plain (the mean); corrected (also takes out of each machine's gradients "
        "what pulls it away from the mean, with sgd and momentum; sends nothing more, and keeps two more copies of the "
        "parameters on every machine of a tier with several); fedprox (gradients pull back to the last average); "
        "fedavgm, fedadam, fedyogi, fedadagrad (the fed server steps with the mean change as if it were a gradient). "
        "The last five keep one more copy.",
    )
    proximal: NotNegative | None = Field(
        None,
        description="With averaging = fedprox: how strongly gradients pull back to the last average; by default 0.01.",
        examples=[0.01],
    )
    server: ServerSection | None = Field(
        None,
        description="With averaging = fedavgm, fedadam, fedyogi or fedadagrad: a table with some of learning_rate (1 "
        "for fedavgm, 0.01 for the others), momentum (of fedavgm, 0.9), betas ([0.9, 0.99]) and tau (0.001).",
        examples=[{"learning_rate": 0.01}],
    )
    labels: Literal["top", "devices"] = Field(
        "top",
        description="Where labels are, and so the last layers and the loss: top (the top tier has them) or devices "
        "(they never leave them: the devices hold the first layers and the last, and what the top computes comes back "
        "down to them). Plans then have a cut and an interval more, those of the devices' tail.",
    )
    weighting: Literal["clients", "samples"] = Field(
        "clients",
        description="What a client counts in mean gradients, in averages and in the reported loss: clients (all the "
        "same) or samples (as many as it has).",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None,
        description="Seed of the initial weights, the partition of the data and the mini-batches; default: the "
        "scenario's seed. The machines are always drawn from the scenario's.",
        examples=[1],
    )

    @property
    def micro_batch_choices(self) -> tuple[int, ...] | None:
        """The numbers of mini-batches to choose from, the least first; None where one is given."""
        given = self.micro_batches
        if isinstance(given, int):
            return None
        return AUTO_MICRO_BATCHES if given == "auto" else tuple(sorted(given))

    @property
    def fewest_micro_batches(self) -> int:
        """The number of mini-batches that is given, or the least to choose from."""
        return self.micro_batches if isinstance(self.micro_batches, int) else min(self.micro_batch_choices or (1,))

    @property
    def correctable(self) -> bool:
        """Whether averages can be corrected."""
        return self.optimizer in ("sgd", "momentum") and not self.average_optimizer

    @property
    def averaging_settings(self) -> dict[str, Any]:
        """What is said of the rule of averages, as the rule takes it."""
        settings: dict[str, Any] = {} if self.server is None else self.server.model_dump(exclude_none=True)
        if "betas" in settings:
            settings["betas"] = tuple(settings["betas"])
        if self.proximal is not None:
            settings["strength"] = self.proximal
        return settings | ({"average_state": True} if self.average_optimizer else {})

    def misplaced_setting(self) -> str | None:
        """What is set for another rule of averages than the one named, in a sentence."""
        if self.proximal is not None and self.averaging != "fedprox":
            return f'training.proximal = {self.proximal:g}: only with averaging = "fedprox"; remove it'
        if self.server is None:
            return None
        if (known := SERVER_SETTINGS.get(self.averaging)) is None:
            names = ", ".join(SERVER_SETTINGS)
            return f'training.server: averaging = "{self.averaging}" has none, only {names}; remove it'
        for name, value in self.server.model_dump(exclude_none=True).items():
            if name not in known:
                rule = f'averaging = "{self.averaging}" has {", ".join(known)}'
                return f"training.server.{name} = {value}: {rule}; remove it"
        return None


class ExecutionSection(Section):
    """What executes a training run, where, and how often it is looked at and saved."""

    backend: Literal["stacked", "reference"] = Field(
        "stacked", description="What executes rounds: stacked (fast) or reference (slow, reads like the paper)."
    )
    device: str = Field("auto", description="Where: cpu, cuda, cuda:1, or auto (cuda where there is one).")
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        "fp32", description="Arithmetic: fp32, tf32 (CUDA only) or bf16 (mixed)."
    )
    evaluate_every: int = Field(
        50, ge=1, le=10**9, description="Rounds between evaluations of the averaged model on the test data."
    )
    evaluate_clients: bool = Field(
        False,
        description="Evaluations also take every client's own model, which it computes with, on its held-out samples "
        "(data.held_out); costs a pass of each.",
    )
    checkpoint_every: int = Field(
        500, ge=0, le=10**9, description="Rounds between checkpoints; 0: only where training is interrupted."
    )
    keep_checkpoints: int = Field(2, ge=1, le=10**6, description="How many of the last checkpoints are kept.")
    deadline: Duration | None = Field(
        None,
        description="Leave clients out of a round whose activations are not at the top tier so long after it began; "
        "default: everyone is waited for.",
        examples=["2 s"],
    )


class DynamicsSection(Section):
    """How the machines' rates change while training; without it they do not."""

    redraw_every: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None,
        description="Draw every link rate that is a distribution anew after so many rounds.",
        examples=[100],
    )
    trace: str | None = Field(
        None,
        description="A CSV with columns time_s,tier,field,factor: from that simulated time on, the field (compute, "
        "uplink, downlink, fed_uplink, fed_downlink) of the tier's machines is the scenario's times factor; relative "
        "to this file.",
        examples=["network.csv"],
    )
