"""The built-in models, and the factories that users name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hsfl.models
from hsfl.errors import MissingExtraError, ModelError
from hsfl.models import NAMES, build, example_input, input_shape, load_factory


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gpt"])
def test_images_give_logits_for_the_classes(name: str) -> None:
    model = build(name, classes=7).eval()
    assert model(torch.randn(2, *input_shape(name))).shape == (2, 7)


def test_gpt_is_causal() -> None:
    model = build("gpt", (16,)).eval()
    tokens = torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, 10:] = 200
    logits, other = model(tokens), model(changed)
    assert logits.shape == (1, 16, 256)
    torch.testing.assert_close(logits[:, :10], other[:, :10])
    assert not torch.equal(logits[:, 10:], other[:, 10:])


def test_vgg16_structure() -> None:
    model = build("vgg16", (1, 32, 32))
    assert sum(isinstance(m, nn.Conv2d) for m in model.modules()) == 13
    assert [m.out_features for m in model.modules() if isinstance(m, nn.Linear)] == [4096, 4096, 10]
    assert sum(isinstance(m, nn.MaxPool2d) for m in model.modules()) == 5
    assert model.get_submodule("fc1").in_features == 512
    with torch.no_grad():
        logits = model(torch.randn(4, 1, 32, 32))
    assert 0.1 < logits.std() < 10


@pytest.mark.parametrize("name", ["lenet5", "resnet18", "vit", "gpt"])
def test_weights_follow_the_seed(name: str) -> None:
    models = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        models.append(build(name))
    same, again, different = ([*m.parameters()] for m in models)
    assert all(torch.equal(a, b) for a, b in zip(same, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(same, different, strict=True))


@pytest.mark.parametrize("name", ["lenet5", "resnet18", "vit", "gpt"])
def test_one_step_lowers_the_loss(name: str) -> None:
    torch.manual_seed(0)
    shape = (16,) if name == "gpt" else input_shape(name)
    model = build(name, shape)
    x = example_input(model, shape, 8)
    targets = torch.arange(128).reshape(8, 16) if name == "gpt" else torch.arange(8)
    losses = []
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(x).flatten(0, -2), targets.flatten())
        model.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.02 * parameter.grad)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("vgg-16", None, "did you mean vgg16?"),
        ("bert", None, "lenet5, vgg11, vgg16, resnet18, vit, gpt"),
        ("vgg16", (3, 28, 28), "at least 32x32 pixels, not 28x28"),
        ("vgg16", (32, 32), "samples like 3x32x32, not 32x32"),
        ("lenet5", (1, 8, 8), "at least 12x12 pixels, not 8x8"),
        ("vit", (3, 30, 32), "multiples of 4, not 30x32"),
        ("gpt", (0,), "samples like 128, not 0"),
        ("gpt", "128", "input_shape must be whole numbers such as (3, 32, 32), not '128'"),
        ("vit", (3, 32.0, 32), "not (3, 32.0, 32)"),
        ("vgg16", (3, 10**6, 10**6), "3x1000000x1000000 and 10 classes does not fit into this machine's memory"),
        ("vgg16", (3, 32, 10**30), "does not fit into this machine's memory"),
        ("resnet18", (10**30, 32, 32), "does not fit into this machine's memory"),
        ("gpt", (10**19,), "does not fit into this machine's memory"),
    ],
)
def test_what_cannot_be_built(name: str, shape: tuple[int, ...] | None, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(name, shape)
    assert said in str(caught.value)


@pytest.mark.parametrize("classes", [0, -1, 2.0, "ten"])
def test_classes_are_a_whole_number(classes: int) -> None:
    with pytest.raises(ModelError, match=rf"^lenet5 tells a whole number of classes apart, .* not {classes!r}$"):
        build("lenet5", classes=classes)


MODULE = """
from torch import nn
answer = 42
def build(): return nn.Linear(2, {width})
def broken(): raise OSError("no\\n weights")
def text(): return "a model"
def needs(width): return nn.Linear(2, width)
def late():
    import {name}_part
    return nn.Linear(2, {name}_part.WIDTH)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "factories.py").write_text(MODULE.format(width=3, name="factories"))
    (tmp_path / "factories_part.py").write_text("WIDTH = 5\n")
    (tmp_path / "raising.py").write_text("1 / 0\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit\n")
    (tmp_path / "needing.py").write_text("import no_such_dependency\n")
    return tmp_path


def test_factory_is_found_in_the_folder_and_sys_path_restored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.path[:]
    assert load_factory("factories:build", folder).out_features == 3
    assert load_factory("factories:late", folder).out_features == 5
    assert sys.path == before
    other = folder / "other"
    other.mkdir()
    (other / "factories.py").write_text(MODULE.format(width=4, name="factories"))
    assert load_factory("factories:build", other).out_features == 4
    monkeypatch.chdir(folder)
    assert load_factory("factories:build", None).out_features == 3
    assert isinstance(load_factory("torch.nn:Identity", None), nn.Identity)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("factories", "package.module:function"),
        ("factories:", "package.module:function"),
        (":build", "package.module:function"),
        ("no_such_module:build", "no module no_such_module in"),
        ("factories.sub:build", "factories.sub"),
        ("factories:biuld", "did you mean build?"),
        ("factories:zzz", "has no zzz"),
        ("factories:answer", "is a int; name a function"),
        ("factories:broken", "raised OSError (no weights)"),
        ("factories:needs", "raised TypeError"),
        ("factories:text", "returned a str; a factory must return an nn.Module"),
        ("raising:build", "importing raising raised ZeroDivisionError (division by zero)"),
        ("leaving:build", "importing leaving raised SystemExit"),
        ("needing:build", "importing needing raised ModuleNotFoundError (No module named 'no_such_dependency')"),
    ],
)
def test_factories_that_fail(folder: Path, spec: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_factory(spec, folder)
    message = str(caught.value)
    assert spec in message and said in message and "\n" not in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    spec = importlib.util.spec_from_file_location("fresh", hsfl.models.__file__)
    assert spec and spec.loader
    with pytest.raises(MissingExtraError, match=r"pip install 'hsfl\[torch\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
