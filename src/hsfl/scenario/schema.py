"""The fields of a scenario file: their types, limits and documentation, in one place.

`hsfl init`, docs/scenario.md and every error message are made from what stands here.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hsfl.scenario.catalog import checked_shape
from hsfl.scenario.field_types import (
    Codes,
    Compute,
    Duration,
    Line,
    NotNegative,
    PerLayer,
    PerLayerOrTier,
    Positive,
    Rate,
    Size,
)

MAX_ENTITIES = 10_000_000


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelSection(_Section):
    """The network to cut: exactly one of name, profile and factory."""

    name: str | None = Field(None, description="A built-in model: vgg11, vgg16, lenet5, resnet18, vit or gpt.")
    profile: str | None = Field(
        None,
        description="A CSV with one row per layer (hsfl profile writes one); relative to this file.",
        examples=["layers.csv"],
    )
    factory: str | None = Field(
        None,
        description='Your own torch model: "package.module:function" returning an nn.Module. Needs input_shape.',
        examples=["my_package.nets:make"],
    )
    input_shape: Annotated[list[int], AfterValidator(checked_shape)] | None = Field(
        None, description="Shape of one sample; built-in models have a default.", examples=[[3, 32, 32]]
    )


class TrainingSection(_Section):
    """How every client trains."""

    batch_size: int = Field(ge=1, le=10**9, description="Samples per client and round (b).")
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
    average_optimizer: bool = Field(
        False,
        description="Averaging a tier averages its optimiser's state too, such as momentum, which then also travels; "
        "otherwise every machine keeps its own.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None,
        description="Seed of the initial weights, the partition of the data and the mini-batches; default: the "
        "scenario's seed. The machines are always drawn from the scenario's.",
        examples=[1],
    )


class StoppingSection(_Section):
    """When training ends: at the first of these that is met; with none of them, after 1000 rounds."""

    rounds: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None,
        description="Train for so many rounds.",
        examples=[2000],
    )
    time_limit: Duration | None = Field(
        None, description='Train for so much simulated time: "90 s", "2 h", or seconds.', examples=["2 h"]
    )
    until_accuracy: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Train until an evaluation reaches this test accuracy.", examples=[0.9]
    )
    until_converged: bool = Field(
        False,
        description="Train until the test accuracy, averaged over 10 evaluations, gains less than 0.02 points on the "
        "10 before.",
    )


class StrategySection(_Section):
    """Who chooses cuts and intervals while training, and what is known when they are chosen."""

    name: str = Field(
        "HSFL",
        description="Who chooses cuts and intervals: HSFL (the planner, again whenever every tier has been averaged), "
        "fixed (cuts and intervals as given), one of the paper's benchmarks (RMA+MS, MA+RMS, RMA+RMS, DAMA+RMS, "
        'RMA+AMS, PSL), or your own: "package.module:Class".',
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None,
        description="Seed of what a strategy draws at random, apart from what training draws; default: training's.",
        examples=[1],
    )
    cuts: list[int] | None = Field(
        None,
        description="With name = fixed and PSL: M-1 counts of layers, after which the model is cut. With HSFL: "
        "keep these and plan the intervals only.",
        examples=[[1, 3]],
    )
    intervals: list[int] | None = Field(
        None,
        description="With name = fixed: M intervals in rounds, one per tier; 1 for a tier with one machine. With "
        "HSFL: keep these and plan the cuts only.",
        examples=[[10, 5, 1]],
    )
    planner: Literal["exact", "bcd"] = Field(
        "exact",
        description="With name = HSFL: exact (the proven optimum) or bcd (the paper's Algorithm 2).",
    )
    allow_empty_tiers: bool = Field(False, description="A planned tier above the devices may only relay.")
    replan_every: int = Field(
        100,
        ge=0,
        le=10**9,
        description="The fewest rounds from one plan to the next; 0 keeps the first plan.",
    )
    constants: Literal["measured", "scenario"] = Field(
        "measured",
        description="What the planner knows while training: measured (smoothness, initial gap and gradient statistics "
        "are measured before the first plan and again before every other) or scenario (those of [convergence]).",
    )
    probe_batches: int = Field(
        4,
        ge=2,
        le=1000,
        description="Mini-batches per client that one measurement of the constants takes; its time is charged like "
        "that of twice as many rounds.",
    )


class ExecutionSection(_Section):
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
    checkpoint_every: int = Field(
        500, ge=0, le=10**9, description="Rounds between checkpoints; 0: only where training is interrupted."
    )
    keep_checkpoints: int = Field(2, ge=1, le=10**6, description="How many of the last checkpoints are kept.")


class DataSection(_Section):
    """What to train on; needed by hsfl train only."""

    name: Literal["mnist-mini", "mnist", "fashion-mnist", "cifar10"] | None = Field(
        None,
        description="mnist-mini (10,000 + 2,000 images, built in), or mnist, fashion-mnist, cifar10 (hsfl data get "
        "NAME). Images smaller than the model's input are padded with zeros.",
    )
    factory: str | None = Field(
        None,
        description='Your own data: "package.module:function" returning (train inputs, train targets, test inputs, '
        "test targets) as tensors, or two torch Datasets. Give either this or name.",
        examples=["my_package.data:load"],
    )
    partition: Literal["iid", "shards", "dirichlet", "csv"] = Field(
        "iid",
        description="How the training samples are spread over the clients: iid (shuffled, equal parts), shards "
        "(sorted by label, cut into equal shards, some per client), dirichlet (label shares drawn per client) or csv.",
    )
    shards_per_client: int = Field(2, ge=1, le=10**6, description="With partition = shards.")
    alpha: Positive = Field(0.5, description="With partition = dirichlet: small is uneven, large is even.")
    assignments: str | None = Field(
        None,
        description="With partition = csv: a file with columns sample,client, both counted from 0; relative to this "
        "file. Samples that are not listed are not used.",
        examples=["clients.csv"],
    )
    augment: list[Literal["crop", "flip"]] = Field(
        [], description="Random changes of training images: crop (shifted by up to 4 pixels), flip (left-right)."
    )


class DynamicsSection(_Section):
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


class TierSection(_Section):
    """One tier of machines. List the tiers from the devices up; every device is a client."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_ -]*$", max_length=60)] = Field(
        description="Used in tables and in --set tiers.NAME.FIELD=VALUE."
    )
    entities: int = Field(ge=1, le=MAX_ENTITIES, description="Machines in this tier.")
    compute: Compute = Field(
        description='FLOP/s of a machine, shared evenly by the clients it hosts: "0.5 TFLOPS", a list with one per '
        "machine, or a distribution: { uniform = [low, high] }, { normal = [mean, deviation] }, "
        "{ lognormal = [median, sigma] }."
    )
    memory: Size | None = Field(
        None, description='Memory of a machine, such as "8 GB"; no limit when absent.', examples=["8 GB"]
    )
    uplink: Rate | None = Field(
        None, description="Rate to the machine above, shared likewise; absent at the top.", examples=["80 Mbps"]
    )
    downlink: Rate | None = Field(
        None, description="Rate from the machine above, shared likewise; absent at the top.", examples=["370 Mbps"]
    )
    fed_uplink: Rate | None = Field(
        None, description="Rate to the fed server, not shared; needed when entities > 1.", examples=["80 Mbps"]
    )
    fed_downlink: Rate | None = Field(
        None, description="Rate from the fed server, not shared; needed when entities > 1.", examples=["370 Mbps"]
    )
    parents: list[int] | None = Field(
        None,
        description="The machine above each machine, counted from 0; default: even and contiguous.",
        examples=[[0, 0, 1, 1]],
    )
    code: Codes | None = Field(
        None,
        description="How what its links carry is written: fp32 (as it is), bf16, int8 or int4, for up and down also "
        'int3 or int2; one for all its links, or a table of some: { up = "int4", down = "int8", average = "fp32" }, of '
        "activations, gradients and averages. Default: fp32.",
        examples=["int8"],
    )


class ConvergenceSection(_Section):
    """What the convergence bound knows of the task. Lists hold one number per layer."""

    smoothness: Positive | None = Field(
        None,
        description="beta: the gradient changes by at most beta times the change of weights. Needed to plan; hsfl "
        "estimate measures it.",
        examples=[10.0],
    )
    initial_gap: Positive | None = Field(
        None,
        description="theta0 = f(w0) - f*: the loss to gain from the start. Likewise.",
        examples=[2.3],
    )
    target: Positive | None = Field(
        None, description="epsilon: the mean squared gradient norm to reach. Or give rounds.", examples=[1.0]
    )
    rounds: Positive | None = Field(
        None,
        description="Instead of target: the rounds that training with all intervals 1 would need to reach it, at this "
        "learning rate or, if that is less, at 1/smoothness.",
        examples=[10000],
    )
    slack: NotNegative | None = Field(
        None,
        description="With rounds: the target is made easier, raised by this part of itself (default 0).",
        examples=[0.1],
    )
    gradient_variance: PerLayer | None = Field(
        None,
        description="sigma_l^2 of each layer's gradient on a mini-batch of batch_size; default: the profile's column "
        "(measured with 16).",
        examples=[[0.8, 1.2]],
    )
    gradient_second_moment: PerLayer | None = Field(
        None,
        description="G_l^2 of each layer's mini-batch gradient; likewise; needed by the drift model of the paper.",
        examples=[[1.0, 1.5]],
    )
    gradient_dissimilarity: PerLayerOrTier | None = Field(
        None,
        description="zeta_l^2 between clients' mean gradients, or one list per tier between its machines; likewise; "
        "needed by the refined drift model.",
        examples=[[0.1, 0.2]],
    )
    drift: Literal["paper", "refined"] | None = Field(
        None,
        description='How sub-models drift apart between averages: "paper" (Theorem 1) or "refined"; default: paper '
        "for hsfl plan, refined while training.",
        examples=["refined"],
    )


class ScenarioFile(_Section):
    """A system, a model and a training task."""

    name: Annotated[Line, Field(min_length=1, max_length=200)] = Field(description="What the scenario is called.")
    description: Line | None = Field(None, description="One line for hsfl scenarios.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of everything drawn.")
    model: ModelSection
    training: TrainingSection
    tiers: Annotated[list[TierSection], Field(min_length=2, max_length=32)]
    convergence: ConvergenceSection = Field(default_factory=lambda: ConvergenceSection.model_validate({}))
    data: DataSection | None = None
    dynamics: DynamicsSection | None = None
    strategy: StrategySection = Field(default_factory=lambda: StrategySection.model_validate({}))
    stopping: StoppingSection = Field(default_factory=lambda: StoppingSection.model_validate({}))
    execution: ExecutionSection = Field(default_factory=lambda: ExecutionSection.model_validate({}))


#: The sections of a file by name, in the order in which they are written; [[tiers]] may be there several times.
SECTIONS: dict[str, type[BaseModel]] = {
    name: kind
    for name, info in ScenarioFile.model_fields.items()
    for kind in (info.annotation, *get_args(info.annotation))
    if isinstance(kind, type) and issubclass(kind, BaseModel)
}
