"""Trace a model's forward pass with torch.fx, or say which line cannot be traced and what would help."""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeGuard

import torch
from torch import fx, nn

from hsfl.errors import ModelError

#: Modules that have weights but never start a layer.
NORMALIZATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_STACKS = (nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer)
_FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate `model` without gradients; the mode of the model and the random state are restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        _set_mode(model, training=False)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _set_mode(model: nn.Module, *, training: bool) -> None:
    """Set the flag of every module and nothing else: train() may be overridden to do more, such as merging adapters."""
    for module in model.modules():
        module.training = training


def cannot_cut(model: nn.Module, reason: str) -> ModelError:
    """The error for a model that is no chain of layers."""
    return ModelError(f"{type(model).__name__} cannot be cut into layers: {reason}")


class Tracer(fx.Tracer):
    """A tracer that follows one input, keeps buffers as references and notes the source line of every operation."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, torch.jit.ScriptModule):
            return True
        if _is_plain_sequential(self.root):
            return not _is_plain_sequential(m)
        stateless = next(itertools.chain(m.parameters(), m.buffers()), None) is None
        whole = isinstance(m, NORMALIZATIONS) or _is_encoder(m)
        return stateless or whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Follow an nn.TransformerEncoder into its blocks where the source is the only argument."""
        if _is_encoder(m) and not _has_hooks(m):
            source = _only_source(*args, **kwargs)
            if source is not None:
                return _encode(m, source)
        return super().call_module(m, forward, args, kwargs)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """One placeholder for the first argument; the other arguments keep their default values."""
        _, name, *_ = (*inspect.signature(root_fn).parameters, "input")
        root_fn = _encode if _is_encoder(self.root) else root_fn
        return root_fn, [self.root, self.create_proxy("placeholder", name, (), {})]

    def create_node(self, kind: str, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(kind, *args, **kwargs)
        if kind not in ("placeholder", "output") and (frame := _model_frame()):
            node.meta["source"] = _quote(frame, frame.f_lineno)
        return node

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Take an assertion about the input to hold while tracing; any other branch on the input cannot be followed."""
        frame = _model_frame()
        if frame and linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("assert "):
            return True
        raise fx.proxy.TraceError("it branches on what the input holds")

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        raise fx.proxy.TraceError("it loops over what the input holds")


def _is_plain_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _is_encoder(module: nn.Module) -> TypeGuard[nn.TransformerEncoder]:
    return isinstance(module, nn.TransformerEncoder) and type(module).forward is nn.TransformerEncoder.forward


def _has_hooks(module: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)


def _only_source(src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None) -> Any:
    """The source among the arguments of an nn.TransformerEncoder, None where the source comes with masks."""
    alone = mask is None and src_key_padding_mask is None and (is_causal is None or is_causal is False)
    return src if alone else None


def _encode(encoder: nn.TransformerEncoder, source: Any) -> Any:
    """The result of an nn.TransformerEncoder for a source without masks.

    The module's own forward asks questions about nested tensors that a trace cannot follow; without masks there are no
    nested tensors.
    """
    for layer in encoder.layers:
        source = layer(source, src_mask=None, is_causal=False, src_key_padding_mask=None)
    return source if encoder.norm is None else encoder.norm(source)


def held_together(traced: fx.GraphModule) -> list[str]:
    """A sentence for each of torch's stacks of blocks that the trace has as one operation: why, and the remedy."""
    sentences = []
    for path in dict.fromkeys(str(node.target) for node in traced.graph.nodes if node.op == "call_module"):
        module = traced.get_submodule(path)
        blocks = sum(len(part) for part in module.modules() if isinstance(part, nn.ModuleList))
        if isinstance(module, _STACKS) and blocks > 1:
            sentences.append(
                f"{path} stays one layer, since a mask, a memory or a hook joins the {blocks} blocks of this "
                f"nn.{type(module).__name__}; to cut between them, put them into an nn.Sequential of modules of your "
                "own that each make what they need beside their input"
            )
    return sentences


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


def trace(model: nn.Module) -> fx.GraphModule:
    """Trace `model` in both modes: a graph is right only if training and evaluation give the same graph."""
    inputs = inspect.signature(model.forward).parameters.values()
    required = [p.name for p in inputs if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(required) > 1 or not inputs:
        names = f" ({', '.join(required)})" if required else ""
        raise cannot_cut(
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
            raise cannot_cut(
                model,
                f"{describe(theirs or ours)} depends on self.training or on chance, which a trace would freeze; "
                "use a module such as nn.Dropout, or make it part of one module in an nn.Sequential",
            )
    _name_places(model, evaluating.graph)
    return evaluating


def _name_places(model: nn.Module, graph: fx.Graph) -> None:
    """Note where each call of a module stands: a trace knows a module that is listed twice by its first place alone."""
    places: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        places.setdefault(module, []).append(path)
    calls: dict[nn.Module, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls.setdefault(model.get_submodule(node.target), []).append(node)
    for module, nodes in calls.items():
        if len(nodes) == len(places[module]):
            for node, place in zip(nodes, places[module], strict=True):
                node.meta["place"] = place


def _trace_once(model: nn.Module) -> fx.GraphModule:
    attributes = {*vars(model)}
    tracer = Tracer()
    try:
        with _factories_recorded(tracer):
            graph = tracer.trace(model)
        return fx.GraphModule(model, graph)
    except Exception as error:
        raise cannot_cut(
            model,
            f"{_locate(model, error)} cannot be traced ({first_line(error)}); "
            "make it part of one module in an nn.Sequential, whose modules are taken as they are",
        ) from None
    finally:
        for constant in vars(model).keys() - attributes:
            delattr(model, constant)


@contextmanager
def _factories_recorded(tracer: Tracer) -> Iterator[None]:
    """Let tensors be made from traced sizes: torch's factories by themselves take traced sizes only in some forms."""

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
    """The line of the model's code that raised `error` and the path of the module with that line."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _is_internal(frame)]
    if not frames:
        return "the forward pass"
    paths = {id(module): path for path, module in model.named_modules()}
    path = next((p for frame, _ in reversed(frames) if (p := paths.get(id(frame.f_locals.get("self"))))), "")
    return _quote(*frames[-1]) + (f" in {path}" if path else "")


def first_line(error: Exception) -> str:
    """The first line of what an exception says, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _is_same(a: fx.GraphModule, node: fx.Node, b: fx.GraphModule, other: fx.Node) -> bool:
    if node.op == other.op == "get_attr" and node.target == other.target:
        return torch.equal(attribute(a, node), attribute(b, other))
    ours, theirs = (
        (n.op, n.target, fx.map_arg(n.args, lambda a: a.name), fx.map_arg(n.kwargs, lambda a: a.name))
        for n in (node, other)
    )
    return ours == theirs


def attribute(root: nn.Module, node: fx.Node) -> Any:
    """The parameter or buffer that a get_attr node stands for."""
    return functools.reduce(getattr, str(node.target).split("."), root)


def describe(node: fx.Node) -> str:
    """A node as its author knows it: the module's path or the line of source."""
    source = node.meta.get("source")
    match node.op:
        case "placeholder":
            return f"the input {node.target}"
        case "output":
            return "the output"
        case "call_module":
            place = node.meta.get("place", node.target)
            return f"{place} in {source}" if source else str(place)
    return source or node.name
