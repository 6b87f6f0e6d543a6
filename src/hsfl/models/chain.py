"""Turn a model into a chain of layers that can be cut between any two of them.

A layer is one weight layer with everything up to the next one: activation, pooling, normalisation, flattening, dropout.
The model's forward pass is traced with torch.fx; a cut is legal where exactly one tensor, and nothing else, passes from
the operations before it to those after it, and where no parameter or buffer is used on both sides. What lies between
two legal cuts (a residual block, say) stays whole.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from hsfl.errors import ModelError

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
_NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def chain(model: nn.Module, example: torch.Tensor) -> nn.Sequential:
    """The layers of `model` as named children, in order; one after the other they compute what the model computes.

    Parameters, buffers and torch.nn modules are the model's own, not copies, so training the chain trains the model and
    train() and eval() reach both. A key of the chain's state dict is the layer's name, a dot and the model's own key.
    `example` is a batch of inputs: running it once, without touching the model, shows what each operation gives.
    A model that has fewer than two layers raises `ModelError`.
    """
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise _error(model, f"the shape of parameter {lazy[0]} is not known yet; run the model on a batch first")
    traced = _trace(model)
    flow = _Flow(model, traced, example)
    parts = flow.layers()
    if len(parts) < 2:
        raise _error(model, flow.obstacle())
    state = model.state_dict().keys()
    layers = nn.Sequential()
    entry = flow.input
    for name, operations, result in parts:
        layers.add_module(_free_name(layers, name), _layer(traced, entry, operations, result, state))
        entry = result
    for module in (layers, *layers):
        module.training = model.training
    return layers


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate `model` without gradients, leaving its mode and the random state as they were."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        _set_mode(model, training=False)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _set_mode(model: nn.Module, *, training: bool) -> None:
    """Set the flags alone: train() can be overridden to do more, such as merging adapters."""
    for module in model.modules():
        module.training = training


def _error(model: nn.Module, reason: str) -> ModelError:
    return ModelError(f"{type(model).__name__} cannot be cut into layers: {reason}")


class _Tracer(fx.Tracer):
    """Follows the one input, keeps buffers as references and notes the source line of every operation."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if _is_plain_sequential(self.root):
            return not _is_plain_sequential(m)
        stateless = next(itertools.chain(m.parameters(), m.buffers()), None) is None
        return stateless or isinstance(m, _NORMALIZATIONS) or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """One placeholder for the first argument; the others keep their default values."""
        _, name, *_ = (*inspect.signature(root_fn).parameters, "input")
        return root_fn, [self.root, self.create_proxy("placeholder", name, (), {})]

    def create_node(self, kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(kind, *args, **kwargs)
        if kind not in ("placeholder", "output") and (frame := _model_frame()):
            node.meta["source"] = _quote(frame, frame.f_lineno)
        return node

    def to_bool(self, obj: fx.Proxy) -> bool:
        """An assertion about the input holds while tracing; any other branch on it cannot be followed."""
        frame = _model_frame()
        if frame and linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("assert "):
            return True
        raise fx.proxy.TraceError("it branches on what the input holds")

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        raise fx.proxy.TraceError("it loops over what the input holds")


def _is_plain_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _model_frame() -> FrameType | None:
    """The innermost frame of the model's own code during a trace."""
    frame: FrameType | None = sys._getframe(1)
    while frame and _is_internal(frame):
        frame = None if frame.f_code is _trace_once.__code__ else frame.f_back
    return frame


def _is_internal(frame: FrameType) -> bool:
    return frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(_TORCH)


def _quote(frame: FrameType, line: int) -> str:
    file = frame.f_code.co_filename
    text = linecache.getline(file, line).strip()
    place = f"{Path(file).name}:{line}"
    return f"`{text}` ({place})" if text else place


def _trace(model: nn.Module) -> fx.GraphModule:
    """Trace in both modes: a graph is right only if it is the same when training and when evaluating."""
    inputs = inspect.signature(model.forward).parameters.values()
    required = [p.name for p in inputs if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(required) > 1 or not inputs:
        names = f" ({', '.join(required)})" if required else ""
        raise _error(
            model,
            f"forward takes {len(required)} inputs{names} and a chain passes one tensor on; "
            "keep one input and compute the others inside forward or give them default values",
        )
    with undisturbed(model):
        evaluating = _trace_once(model)
        _set_mode(model, training=True)
        training = _trace_once(model)
    for ours, theirs in itertools.zip_longest(evaluating.graph.nodes, training.graph.nodes):
        if not (ours and theirs and _is_same(evaluating, ours, training, theirs)):
            raise _error(
                model,
                f"{_describe(theirs or ours)} depends on self.training or on chance, which a trace would freeze; "
                "use a module such as nn.Dropout, or make it part of one module in an nn.Sequential",
            )
    return evaluating


def _trace_once(model: nn.Module) -> fx.GraphModule:
    attributes = {*vars(model)}
    tracer = _Tracer()
    try:
        with _factories_recorded(tracer):
            graph = tracer.trace(model)
        return fx.GraphModule(model, graph)
    except Exception as error:
        raise _error(
            model,
            f"{_locate(model, error)} cannot be traced ({_first_line(error)}); "
            "make it part of one module in an nn.Sequential, whose modules are taken as they are",
        ) from None
    finally:
        for constant in vars(model).keys() - attributes:
            delattr(model, constant)


@contextmanager
def _factories_recorded(tracer: _Tracer) -> Iterator[None]:
    """Let tensors be made from traced sizes: torch's factories take only some forms of them by themselves."""

    def recorded(factory: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if _holds_proxy([*args, *kwargs.values()]):
                return tracer.create_proxy("call_function", factory, args, kwargs)
            return factory(*args, **kwargs)

        return call

    factories = {name: getattr(torch, name) for name in _FACTORIES}
    try:
        for name, factory in factories.items():
            setattr(torch, name, recorded(factory))
        yield
    finally:
        for name, factory in factories.items():
            setattr(torch, name, factory)


def _holds_proxy(value: Any) -> bool:
    return isinstance(value, fx.Proxy) or (isinstance(value, list | tuple) and any(map(_holds_proxy, value)))


def _locate(model: nn.Module, error: Exception) -> str:
    """The line of the model's code that raised `error` and the path of its module."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _is_internal(frame)]
    if not frames:
        return "the forward pass"
    paths = {id(module): path for path, module in model.named_modules()}
    path = next((p for frame, _ in reversed(frames) if (p := paths.get(id(frame.f_locals.get("self"))))), "")
    return _quote(*frames[-1]) + (f" in {path}" if path else "")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _is_same(a: fx.GraphModule, node: fx.Node, b: fx.GraphModule, other: fx.Node) -> bool:
    if node.op == other.op == "get_attr" and node.target == other.target:
        return torch.equal(_attribute(a, node), _attribute(b, other))
    ours, theirs = (
        (n.op, n.target, fx.map_arg(n.args, lambda a: a.name), fx.map_arg(n.kwargs, lambda a: a.name))
        for n in (node, other)
    )
    return ours == theirs


def _attribute(root: nn.Module, node: fx.Node) -> Any:
    return functools.reduce(getattr, str(node.target).split("."), root)


def _describe(node: fx.Node) -> str:
    source = node.meta.get("source")
    match node.op:
        case "placeholder":
            return f"the input {node.target}"
        case "output":
            return "the output"
        case "call_module":
            return f"{node.target} in {source}" if source else str(node.target)
    return source or node.name


class _Observer(fx.Interpreter):
    """Runs a traced model once, keeping every value and noting FLOPs and what is overwritten in place."""

    def __init__(self, model: nn.Module, traced: fx.GraphModule, example: torch.Tensor) -> None:
        super().__init__(traced, garbage_collect_values=False)
        self.extra_traceback = False
        self.flops: dict[fx.Node, int] = {}
        self.overwrites: dict[fx.Node, set[int]] = {}
        self._rejection = f"{type(model).__name__} rejects samples of shape {'x'.join(map(str, example.shape[1:]))} at"
        with undisturbed(model):
            self.run(example.clone())

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return super().get_attr(target, args, kwargs).clone()

    def run_node(self, n: fx.Node) -> Any:
        inputs = [value for source in n.all_input_nodes if isinstance(value := self.env[source], torch.Tensor)]
        versions = [tensor._version for tensor in inputs]
        try:
            with FlopCounterMode(display=False) as counter:
                result = super().run_node(n)
        except Exception as error:
            raise ModelError(
                f"{self._rejection} {_describe(n)} ({_first_line(error)}); give the shape the model was made for"
            ) from None
        self.flops[n] = counter.get_total_flops()
        self.overwrites[n] = {_storage(t) for t, version in zip(inputs, versions, strict=True) if t._version != version}
        return result


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Flow:
    """The operations of a traced model in order, the weight layers among them and where they can be cut apart.

    A cut is named by the position of the last operation before it.
    """

    def __init__(self, model: nn.Module, traced: fx.GraphModule, example: torch.Tensor) -> None:
        self._traced = traced
        self._seen = _Observer(model, traced, example)
        traced.graph.eliminate_dead_code(
            lambda node: node.op in ("placeholder", "output") or bool(self._seen.overwrites[node])
        )
        nodes = list(traced.graph.nodes)
        self.input, output = nodes[0], nodes[-1]
        self.result = output.args[0]
        if not (isinstance(self.result, fx.Node) and isinstance(self._seen.env[self.result], torch.Tensor)):
            given = type(self._seen.env[output]).__name__
            raise _error(model, f"forward returns a {given}; return the one tensor that the loss is computed from")
        self._operations = [node for node in nodes if node.op.startswith("call")]
        self._position = {node: i for i, node in enumerate(self._operations)}
        self._position |= {self.input: -1, output: len(self._operations)}
        self._weights = self._find_weights()
        self._crossing: dict[int, fx.Node] = {}
        self._obstacles = self._shared_state(model)
        self._sweep()

    def layers(self) -> list[tuple[str, list[fx.Node], fx.Node]]:
        """Name, operations and result of each layer."""
        parts = []
        name = ""
        start = segment = 0
        for end in [*self._crossing, len(self._operations) - 1]:
            weight = next((self._weights[i] for i in range(segment, end + 1) if i in self._weights), "")
            if name and weight:
                parts.append((name, self._operations[start:segment], self._crossing[segment - 1]))
                start = segment
            name = weight or name
            segment = end + 1
        return [*parts, (name, self._operations[start:], self.result)]

    def obstacle(self) -> str:
        """What keeps the weight layers together."""
        if len(self._weights) < 2:
            found = "".join(f"its only weight layer is {name!r}" for name in self._weights.values())
            return f"{found or 'it has no weight layer'}; a place to cut needs one on each side"
        blame = Counter(o for cut in range(min(self._weights), max(self._weights)) for o in self._obstacles[cut])
        return blame.most_common(1)[0][0]

    def _find_weights(self) -> dict[int, str]:
        """The paths of the weight layers by position.

        A parameter used outside a torch.nn module makes a weight layer where it is multiplied as a matrix; one that
        only shifts or scales (a position embedding, a class token, a hand-written normalisation) does not.
        """
        weights: dict[int, str] = {}
        owners: dict[fx.Node, str] = {}
        for node in self._traced.graph.nodes:
            sources = node.all_input_nodes
            owned = [owners[source] for source in sources if source in owners]
            if node.op == "get_attr":
                if isinstance(_attribute(self._traced, node), nn.Parameter):
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
        """For each cut, the parameters and buffers that are used on both sides of it."""
        named = itertools.chain(
            ((f"parameter {name}", p) for name, p in model.named_parameters()),
            ((f"buffer {name}", b) for name, b in model.named_buffers()),
        )
        names = {id(tensor): name for name, tensor in named}
        uses: dict[str, list[int]] = {}
        for position, node in enumerate(self._operations):
            held = [_attribute(self._traced, source) for source in node.all_input_nodes if source.op == "get_attr"]
            if node.op == "call_module":
                module = self._traced.get_submodule(node.target)
                held += [*module.parameters(), *module.buffers()]
            for name in dict.fromkeys(names[id(tensor)] for tensor in held if id(tensor) in names):
                uses.setdefault(name, []).append(position)
        obstacles: list[list[str]] = [[] for _ in self._operations]
        for name, positions in uses.items():
            first, last = positions[0], positions[-1]
            text = (
                f"{name} is used at {_describe(self._operations[first])} and at {_describe(self._operations[last])}; "
                f"untie it: give each layer a {name.split()[0]} of its own"
            )
            for cut in range(first, last):
                obstacles[cut].append(text)
        return obstacles

    def _sweep(self) -> None:
        """Find the legal cuts and the value that crosses each."""
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
                self._obstacles[cut].append(f"nothing after {_describe(node)} depends on the input; pass its result on")
            elif len(live) > 1 or not isinstance(values[0], torch.Tensor):
                self._obstacles[cut] += [self._needed_later(value) for value in live]
            elif overwritten.get(_storage(values[0]), -1) > cut:
                self._obstacles[cut].append(
                    f"{_describe(live[0])} is overwritten in place later; write to a new tensor"
                )
            if not self._obstacles[cut]:
                self._crossing[cut] = live[0]

    def _needed_later(self, node: fx.Node) -> str:
        user = max(node.users, key=lambda user: self._position[user])
        remedy = (
            "compute it inside each block that uses it"
            if isinstance(self._seen.env[node], torch.Tensor)
            else "it is not a tensor: read it from the tensor that each block receives"
        )
        return f"what {_describe(node)} gives is still needed at {_describe(user)}; {remedy}"


def _is_weight_layer(module: nn.Module) -> bool:
    return not isinstance(module, _NORMALIZATIONS) and any(p.ndim > 1 for p in module.parameters())


class _Constant(nn.Module):
    """A tensor that is no part of the model's state dict, and so none of the layer's."""

    value: torch.Tensor

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value, persistent=False)

    def forward(self) -> torch.Tensor:
        return self.value


def _layer(
    traced: fx.GraphModule, entry: fx.Node, operations: list[fx.Node], result: fx.Node, state: Collection[str]
) -> fx.GraphModule:
    graph = fx.Graph(tracer_cls=_Tracer)
    copies = {entry: graph.placeholder("input")}
    attributes: dict[str, Any] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            target, value = str(node.target), _attribute(traced, node)
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
    graph.output(copies[result])
    return fx.GraphModule(attributes, graph, class_name="Layer")


def _free_name(layers: nn.Sequential, path: str) -> str:
    name = path.replace(".", "_")
    candidates = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2)))
    return next(candidate for candidate in candidates if not hasattr(layers, candidate))
