"""The section of a scenario file that says what to train on. See `scenario.training_sections`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hsfl.scenario.field_types import NotNegative, Positive, Section


class ColumnsSection(Section):
    """The columns of a factory's data that has names for them."""

    inputs: str = Field("inputs", description="What the model takes.")
    targets: str = Field("targets", description="The class, or the classes, of each sample.")
    client: str | None = Field(None, description="Whose each sample is, for partition = natural.", examples=["writer"])


class DataSection(Section):
    """What to train on; needed by hsfl train only."""

    name: Literal["mnist-mini", "mnist", "fashion-mnist", "cifar10", "leaf", "own"] | None = Field(
        None,
        description="mnist-mini (10,000 + 2,000 images, built in), or mnist, fashion-mnist, cifar10 (hsfl data get "
        "NAME). Images smaller than the model's input are padded with zeros. leaf: FEMNIST, Shakespeare or another set "
        "of the benchmark LEAF, in its JSON files (folder). own: every device brings its own (hsfl "
        "node --data), and nobody else has it; for hsfl run only.",
    )
    factory: str | None = Field(
        None,
        description='Your own data: "package.module:function" returning (train inputs, train targets, test inputs, '
        "test targets) as tensors, two torch Datasets, or a dictionary of Hugging Face data sets, or of columns, for "
        "train and test. Targets are int64 classes, counted from 0, or floating-point numbers. Give either this or "
        "name.",
        examples=["my_package.data:load"],
    )
    folder: str | None = Field(
        None,
        description="With name = leaf: the folder with LEAF's train and test, or all_data, of which every tenth sample "
        "of a user is then for testing; relative to this file.",
        examples=["leaf/data/femnist/data"],
    )
    columns: ColumnsSection | None = Field(
        None,
        description='With a factory\'s data sets of columns: a table with some of inputs ("inputs"), targets '
        '("targets") and client (none), the names of these columns.',
        examples=[{"inputs": "image", "targets": "label"}],
    )
    inputs: Literal["float32", "uint8", "int64"] = Field(
        "float32",
        description="With name = own: float32 numbers, uint8 images (channels, height, width), which are divided by "
        "255, or int64 tokens. Their shape is model.input_shape.",
    )
    test: str | None = Field(
        None,
        description="With name = own: what the coordinator evaluates on, a .npz or .safetensors file with inputs and "
        'targets, relative to this file, or "package.module:function" returning both; without it there is the '
        "training loss alone.",
        examples=["test.npz"],
    )
    partition: Literal["iid", "shards", "dirichlet", "quantity", "natural", "csv"] = Field(
        "iid",
        description="How the training samples are spread over the clients: iid (shuffled, equal parts), shards "
        "(sorted by label, cut into equal shards, some per client), dirichlet (label shares drawn per client), "
        "quantity (shuffled, the sizes of the parts drawn), natural (by who made them, where the data say so) or csv.",
    )
    shards_per_client: int = Field(2, ge=1, le=10**6, description="With partition = shards.")
    alpha: Positive = Field(0.5, description="With partition = dirichlet or quantity: small is uneven, large is even.")
    users_per_client: Annotated[int, Field(ge=1, le=10**6)] | None = Field(
        None,
        description="With partition = natural: how many users of the data each client gets, dealt in an order that is "
        "drawn; others are not used. Default: all users are dealt, as evenly as that goes.",
        examples=[1],
    )
    feature_noise: NotNegative = Field(
        0.0,
        description="Each client's inputs get Gaussian noise of its own, with a deviation that grows evenly from 0 for "
        "the first client to this for the last; images count from 0 to 1.",
    )
    samples_per_client: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None,
        description="Instead of dealing the samples out: every client draws so many by its own seed, from all (iid), "
        "from labels drawn for it (shards) or in shares of labels drawn for it (dirichlet). Clients may then have the "
        "same samples: for fleets larger than the data.",
        examples=[100],
    )
    assignments: str | None = Field(
        None,
        description="With partition = csv: a file with columns sample,client, both counted from 0; relative to this "
        "file. Samples that are not listed are not used.",
        examples=["clients.csv"],
    )
    validation: Annotated[float, Field(ge=0, le=0.9)] = Field(
        0.0,
        description="Evaluate on this part of the training samples, which is not trained on and the same for every "
        "seed, instead of the test set: to choose settings by, so that the test set can judge them.",
    )
    held_out: Annotated[float, Field(ge=0, le=0.9)] = Field(
        0.0,
        description="The part of every client's training samples that it does not train on; evaluations then say how "
        "well the averaged model does on those of each client: the mean, the lowest and the highest tenth.",
    )
    augment: list[Literal["crop", "flip"]] = Field(
        [], description="Random changes of training images: crop (shifted by up to 4 pixels), flip (left-right)."
    )
