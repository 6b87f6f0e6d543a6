"""The fields of a scenario file: their types, limits and documentation, in one place.

`hsfl init`, docs/scenario.md and every error message are made from what stands here.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, Field
from pydantic.fields import FieldInfo

from hsfl.scenario.catalog import checked_shape
from hsfl.scenario.data_section import DataSection
from hsfl.scenario.field_types import (
    Codes,
    Compute,
    Line,
    NotNegative,
    PerLayer,
    PerLayerOrTier,
    Positive,
    Rate,
    Section,
    Size,
)
from hsfl.scenario.participation import ParticipationSection
from hsfl.scenario.strategy_sections import StoppingSection, StrategySection
from hsfl.scenario.training_sections import (
    DynamicsSection,
    ExecutionSection,
    TrainingSection,
)

MAX_ENTITIES = 10_000_000


class ModelSection(Section):
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
    classes: Annotated[int, Field(ge=1, le=10**6)] | None = Field(
        None,
        description="With name: how many classes it tells apart; by default 10. A gpt predicts one of 256 tokens.",
        examples=[62],
    )


class PlaceSection(Section):
    """What each machine of a tier takes of a Ray cluster."""

    cpus: NotNegative = Field(0.01, description="Cores; small by default, so that a laptop can host all machines.")
    gpus: NotNegative = Field(0, description="GPUs, or a part of one; with any, the machine computes on it.")
    resources: dict[str, Positive] = Field({}, description="Custom resources, by name.", examples=[{"phone": 1}])
    labels: dict[str, str] = Field({}, description="Labels that its node must have.", examples=[{"region": "eu"}])


class TierSection(Section):
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
        description="How what its links carry is written: fp32 (as it is), bf16, int8 or int4; one for all its links, "
        'or a table of some: { up = "int4", down = "int8", average = "fp32" }, of activations, gradients and averages. '
        'A list such as ["int8", "int4"] lets the planner choose among these, "auto" among all. The top has up (to the '
        "tails) and down (back) where labels stay on the devices. Default: fp32.",
        examples=["int8"],
    )
    place: PlaceSection | None = Field(
        None,
        description="What each of its machines takes of a Ray cluster, and is hosted where there is: a table with some "
        "of cpus (0.01 by default), gpus, resources (by name) and labels (of the node): { gpus = 0.5, resources = "
        '{ phone = 1 }, labels = { region = "eu" } }. Only hsfl run --ray reads it.',
        examples=[{"cpus": 0.5, "resources": {"phone": 1}}],
    )


class ConvergenceSection(Section):
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
        description="Instead of target: the rounds that training of all clients with all intervals 1 would need to "
        "reach it, at this learning rate or, if that is less, at 1/smoothness.",
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
    coding_noise_up: PerLayer | None = Field(
        None,
        description="Where codes are planned: what activations in int4 over the cut after each layer add to the "
        "variance of the gradient, all layers of it; other codes follow from it. Default: a usual part of "
        "gradient_variance.",
        examples=[[0.1, 0.05]],
    )
    coding_noise_down: PerLayer | None = Field(
        None, description="The same of gradients coming down over that cut.", examples=[[0.02, 0.03]]
    )
    drift: Literal["paper", "refined"] | None = Field(
        None,
        description='How sub-models drift apart between averages: "paper" (Theorem 1) or "refined"; default: paper '
        "for hsfl plan, refined while training with these constants.",
        examples=["refined"],
    )


class ScenarioFile(Section):
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
    participation: ParticipationSection = Field(default_factory=lambda: ParticipationSection.model_validate({}))
    strategy: StrategySection = Field(default_factory=lambda: StrategySection.model_validate({}))
    stopping: StoppingSection = Field(default_factory=lambda: StoppingSection.model_validate({}))
    execution: ExecutionSection = Field(default_factory=lambda: ExecutionSection.model_validate({}))


def nested(field: FieldInfo | None) -> type[BaseModel] | None:
    """The section that a field holds; None where it holds none."""
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


#: The sections of a file by name, in the order in which they are written; [[tiers]] may be there several times.
SECTIONS: dict[str, type[BaseModel]] = {
    name: kind for name, info in ScenarioFile.model_fields.items() if (kind := nested(info)) is not None
}
