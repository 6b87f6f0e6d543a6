"""Where the classes are: last, as in texts, or second, as in images."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hsfl.engine.losses import accuracy, are_classes, cross_entropy
from hsfl.errors import ModelError

SHAPES = {
    "one per sample": ((6, 4), (6,)),
    "one per token": ((6, 5, 4), (6, 5)),
    "one per token, classes second": ((6, 4, 5), (6, 5)),
    "one per pixel, classes second": ((6, 4, 7, 8), (6, 7, 8)),
    "one per pixel, classes last": ((6, 7, 8, 4), (6, 7, 8)),
    "as many classes as rows": ((6, 4, 4, 4), (6, 4, 4)),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_against_torchs_own(kind: str) -> None:
    shape, target_shape = SHAPES[kind]
    torch.manual_seed(0)
    outputs, targets = torch.randn(shape), torch.randint(0, 4, target_shape)
    second = outputs if "second" in kind or "rows" in kind else outputs.movedim(-1, 1)
    expected = functional.cross_entropy(second, targets, reduction="none")
    torch.testing.assert_close(cross_entropy(outputs, targets), expected, rtol=1e-6, atol=1e-6)  # other strides
    assert torch.equal(accuracy(outputs, targets), second.argmax(1) == targets)
    assert are_classes(outputs, targets)


@pytest.mark.parametrize(("outputs", "targets"), [((6,), (6,)), ((6, 4), (6, 4)), ((6, 4, 5), (6, 6))])
def test_what_does_not_fit_is_said(outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="cross entropy needs one more axis in the outputs than in the targets"):
        cross_entropy(torch.randn(outputs), torch.zeros(targets, dtype=torch.int64))
    assert not are_classes(torch.randn(outputs), torch.zeros(targets, dtype=torch.int64))
