"""Turn a model into a chain of layers that can be cut between any two layers.

A layer is one weight layer with everything up to the next weight layer: activation, pooling, normalisation, flattening,
dropout. The model's forward pass is traced with torch.fx; a cut is legal where exactly one tensor, and nothing else,
passes from the operations before the cut to those after the cut, and where no parameter or buffer is used on both
sides. What lies between two legal cuts (a residual block, say) stays whole.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from hsfl.errors import ModelError
from hsfl.models.checks import check_example, check_model, times
from hsfl.models.flops import flop_counter
from hsfl.models.trace import (
    NORMALIZATIONS,
    Tracer,
    attribute,
    cannot_cut,
    describe,
    first_line,
    held_together,
    trace,
    undisturbed,
)

#: What a layer gives: the result of an operation; the last layer, several, as `forward` returns them.
Result = Any


def chain(model: nn.Module, example: torch.Tensor) -> nn.Sequential:
    """The layers of `model` as named children, in order; one after the other, the layers compute what the model does.

    Parameters, buffers and torch.nn modules are the model's own, not copies, so training the chain trains the model and
    train() and eval() reach both. A key of the chain's state dict is the layer's name, a dot and the model's own key.
    `example` is a batch of inputs: one run on the example and one on the example twice over, neither of which touches
    the model, show what each operation gives and that results come per sample. A model that has fewer than two
    layers raises `ModelError`; a stack of transformer blocks that cannot be cut inside is one layer, and a warning says
    why.
    """
    check_model(model)
    check_example(example)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise cannot_cut(model, f"the shape of parameter {lazy[0]} is not known yet; run the model on a batch first")
    traced = trace(model)
    flow = _Flow(model, traced, example)
    parts = flow.layers()
    held = held_together(traced)
    if len(parts) < 2:
        raise cannot_cut(model, held[0] if held else flow.obstacle())
    for sentence in held:
        warnings.warn(f"{type(model).__name__}: {sentence}", stacklevel=2)
    state = model.state_dict().keys()
    layers = nn.Sequential()
    entry = flow.input
    for name, operations, result in parts:
        layers.add_module(_free_name(layers, name), _layer(traced, entry, operations, result, state))
        entry = result
    for module in (layers, *layers):
        module.training = model.training
    return layers


class _Runner(fx.Interpreter):
    """Runs a traced model on copies of its buffers, which an operation may write to."""

    def __init__(self, traced: fx.GraphModule, *, keep: bool = False) -> None:
        super().__init__(traced, garbage_collect_values=not keep)
        self.extra_traceback = False

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().get_attr(target, args, kwargs).clone()


class _Observer(_Runner):
    """Runs a traced model once, keeps every value and notes the FLOPs and which tensors are overwritten in place."""

    def __init__(self, model: nn.Module, traced: fx.GraphModule, example: torch.Tensor) -> None:
        super().__init__(traced, keep=True)
        self.flops: dict[fx.Node, int] = {}
        self.overwrites: dict[fx.Node, set[int]] = {}
        self._rejection = f"{type(model).__name__} rejects samples of shape {times(example.shape[1:])} at"
        with undisturbed(model):
            self.run(example.clone())

    def run_node(self, n: fx.Node) -> Any:
        inputs = [value for source in n.all_input_nodes if isinstance(value := self.env[source], torch.Tensor)]
        versions = [tensor._version for tensor in inputs]
        try:
            with flop_counter() as counter:
                result = super().run_node(n)
        except Exception as error:
            raise ModelError(
                f"{self._rejection} {describe(n)} ({first_line(error)}); give the shape the model was made for"
            ) from None
        self.flops[n] = counter.get_total_flops()
        self.overwrites[n] = {_storage(t) for t, version in zip(inputs, versions, strict=True) if t._version != version}
        return result


def _check_batch(model: nn.Module, traced: fx.GraphModule, example: torch.Tensor, outputs: list[torch.Tensor]) -> None:
    """Refuse a model with an output that does not grow in its first dimension with the number of samples."""
    one, two = len(example), 2 * len(example)
    given = f"a single number for a batch of {one}"
    if all(output.ndim for output in outputs):
        try:
            with undisturbed(model):
                grown = tree_leaves(_Runner(traced).run(torch.cat([example, example])))
        except Exception as error:
            reason = f"it takes a batch of {one} but not one of {two} ({first_line(error)})"
            raise cannot_cut(model, f"{reason}; let it take any number of samples") from None
        odd = [(o, g) for o, g in zip(outputs, grown, strict=True) if len(g) != 2 * len(o)]
        if not odd:
            return
        output, more = odd[0]
        given = f"shape {times(output.shape)} for a batch of {one} and {times(more.shape)} for one of {two}"
    raise cannot_cut(
        model, f"forward returns {given}; return one result per sample, with the batch as the first dimension"
    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Flow:
    """The operations of a traced model in order, the weight layers among the operations and the legal cuts.

    A cut is named by the position of the last operation before the cut.
    """

    def __init__(self, model: nn.Module, traced: fx.GraphModule, example: torch.Tensor) -> None:
        self._traced = traced
        self._seen = _Observer(model, traced, example)
        traced.graph.eliminate_dead_code(
            lambda node: node.op in ("placeholder", "output") or bool(self._seen.overwrites[node])
        )
        nodes = list(traced.graph.nodes)
        self.input, output = nodes[0], nodes[-1]
        self.result: Result = output.args[0]
        found = tree_leaves(self._seen.env[output])
        if not found or not all(isinstance(one, torch.Tensor) for one in found):
            given = type(self._seen.env[output]).__name__
            raise cannot_cut(
                model,
                f"forward returns a {given}; return the tensor that the loss is computed from, or a tuple or "
                "dictionary of tensors",
            )
        _check_batch(model, traced, example, found)
        self._operations = [node for node in nodes if node.op.startswith("call")]
        self._position = {node: i for i, node in enumerate(self._operations)}
        self._position |= {self.input: -1, output: len(self._operations)}
        self._weights = self._find_weights()
        self._crossing: dict[int, fx.Node] = {}
        self._obstacles = self._shared_state(model)
        self._sweep()

    def layers(self) -> list[tuple[str, list[fx.Node], Result]]:
        """The name, the operations and the result of each layer."""
        parts: list[tuple[str, list[fx.Node], Result]] = []
        name = ""
        start = segment = 0
        for end in [*self._crossing, len(self._operations) - 1]:
            weight = _common_path([self._weights[i] for i in range(segment, end + 1) if i in self._weights])
            if name and weight:
                parts.append((name, self._operations[start:segment], self._crossing[segment - 1]))
                start = segment
            name = weight or name
            segment = end + 1
        return [*parts, (name, self._operations[start:], self.result)]

    def obstacle(self) -> str:
        """The sentence that says what keeps the weight layers together."""
        if len(self._weights) < 2:
            found = "".join(f"its only weight layer is {name!r}" for name in self._weights.values())
            return f"{found or 'it has no weight layer'}; a place to cut needs one on each side"
        blame = Counter(o for cut in range(min(self._weights), max(self._weights)) for o in self._obstacles[cut])
        return blame.most_common(1)[0][0]

    def _find_weights(self) -> dict[int, str]:
        """The paths of the weight layers by position.

        A parameter used outside a torch.nn module makes a weight layer where it is multiplied as a matrix; a parameter
        that only shifts or scales (a position embedding, a class token, a hand-written normalisation) does not.
        """
        weights: dict[int, str] = {}
        owners: dict[fx.Node, str] = {}
        for node in self._traced.graph.nodes:
            sources = node.all_input_nodes
            owned = [owners[source] for source in sources if source in owners]
            if node.op == "get_attr":
                if isinstance(attribute(self._traced, node), nn.Parameter):
                    owners[node] = node.target.rpartition(".")[0] or node.target
            elif node.op == "call_module":
                if _is_weight_layer(self._traced.get_submodule(node.target)):
                    weights[self._position[node]] = node.target
            elif owned and len(owned) == len(sources):
                owners[node] = owned[0]
            elif owned and self._seen.flops[node]:
                weights[self._position[node]] = owned[0]
        return weights

    def _shared_state(self, model: nn.Module) -> list[list[str]]:
        """For each cut, a sentence about every parameter and buffer that is used on both sides of the cut."""
        named = itertools.chain(
            ((f"parameter {name}", p) for name, p in model.named_parameters()),
            ((f"buffer {name}", b) for name, b in model.named_buffers()),
        )
        names = {id(tensor): name for name, tensor in named}
        uses: dict[str, list[int]] = {}
        for position, node in enumerate(self._operations):
            held = [attribute(self._traced, source) for source in node.all_input_nodes if source.op == "get_attr"]
            if node.op == "call_module":
                module = self._traced.get_submodule(node.target)
                held += [*module.parameters(), *module.buffers()]
            for name in dict.fromkeys(names[id(tensor)] for tensor in held if id(tensor) in names):
                uses.setdefault(name, []).append(position)
        obstacles: list[list[str]] = [[] for _ in self._operations]
        for name, positions in uses.items():
            first, last = positions[0], positions[-1]
            text = (
                f"{name} is used at {describe(self._operations[first])} and at {describe(self._operations[last])}; "
                f"untie it: give each layer a {name.split()[0]} of its own"
            )
            for cut in range(first, last):
                obstacles[cut].append(text)
        return obstacles

    def _sweep(self) -> None:
        """Find the legal cuts and the value that crosses each legal cut."""
        last_use = {
            node: max((self._position[user] for user in node.users), default=-1)
            for node in (self.input, *self._operations)
        }
        overwritten: dict[int, int] = {}
        for position, node in enumerate(self._operations):
            overwritten |= dict.fromkeys(self._seen.overwrites[node], position)
        live = [self.input]
        for cut, node in enumerate(self._operations[:-1]):
            live = [value for value in (*live, node) if last_use[value] > cut]
            values = [self._seen.env[value] for value in live]
            if not live:
                self._obstacles[cut].append(f"nothing after {describe(node)} depends on the input; pass its result on")
            elif len(live) > 1 or not isinstance(values[0], torch.Tensor):
                self._obstacles[cut] += [self._needed_later(value) for value in live]
            elif overwritten.get(_storage(values[0]), -1) > cut:
                self._obstacles[cut].append(f"{describe(live[0])} is overwritten in place later; write to a new tensor")
            if not self._obstacles[cut]:
                self._crossing[cut] = live[0]

    def _needed_later(self, node: fx.Node) -> str:
        user = max(node.users, key=lambda user: self._position[user])
        remedy = (
            "compute it inside each block that uses it"
            if isinstance(self._seen.env[node], torch.Tensor)
            else "it is not a tensor: read it from the tensor that each block receives"
        )
        return f"what {describe(node)} gives is still needed at {describe(user)}; {remedy}"


def _common_path(paths: list[str]) -> str:
    """The path of the module that holds all given modules: "blocks.4" for "blocks.4.conv1" and "blocks.4.conv2"."""
    if not paths:
        return ""
    columns = zip(*(path.split(".") for path in paths), strict=False)
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, columns)
    return ".".join(parts[0] for parts in shared) or paths[0]


def _is_weight_layer(module: nn.Module) -> bool:
    return not isinstance(module, NORMALIZATIONS) and any(p.ndim > 1 for p in module.parameters())


class _Constant(nn.Module):
    """A tensor that is no part of the model's state dict, and so no part of the layer's state dict."""

    value: torch.Tensor

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value, persistent=False)

    def forward(self) -> torch.Tensor:
        return self.value


def _layer(
    traced: fx.GraphModule, entry: fx.Node, operations: list[fx.Node], result: Result, state: Collection[str]
) -> fx.GraphModule:
    graph = fx.Graph(tracer_cls=Tracer)
    copies = {entry: graph.placeholder("input")}
    attributes: dict[str, Any] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            target, value = str(node.target), attribute(traced, node)
            if target in state:
                copies[node] = graph.get_attr(target)
                attributes[target] = value
            else:
                name = f"_constant_{len(copies)}"
                attributes[name] = _Constant(value)
                copies[node] = graph.call_module(name)
        return copies[node]

    for node in operations:
        if node.op == "call_module":
            attributes[str(node.target)] = traced.get_submodule(str(node.target))
        copies[node] = graph.node_copy(node, copied)
    graph.output(fx.node.map_arg(result, copied))
    return fx.GraphModule(attributes, graph, class_name="Layer")


def _free_name(layers: nn.Sequential, path: str) -> str:
    name = path.replace(".", "_")
    candidates = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2)))
    return next(candidate for candidate in candidates if not hasattr(layers, candidate))
