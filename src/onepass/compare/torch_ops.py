"""Runs a graph node by node with PyTorch's own operators, as a model written in PyTorch would.

In: torch, a graph and its values: tensors, and a number for a constant bound of Clip. Out: its outputs. It
covers the ops of the zoo and common relatives; any other op is an error that names the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from onepass.core.errors import UserError
from onepass.graph.ir import Graph

Tensor = Any
Values = Sequence[Tensor]
Attributes = Mapping[str, Any]
Run = Callable[[ModuleType, Values, Attributes], Tensor]


def check_ops(graph: Graph) -> None:
    """Raises UserError with the names of the nodes that `run_graph` has no operator for."""
    unknown = [f"'{node.name}' ({node.spelling or node.op})" for node in graph.nodes if node.op not in RUNS]
    if unknown:
        raise UserError("torch has no operator here for some nodes", where=", ".join(unknown[:10]))


def numbers_of(graph: Graph) -> dict[str, Any]:
    """The constant bounds of each Clip, by name: `run_graph` takes them as numbers, which a compiler can
    fold, and as tensors it cannot."""
    bounds = {name for node in graph.nodes if node.op == "clip" for name in node.inputs[1:]}
    return {name: array.item() for name, array in graph.constants.items() if name in bounds}


def run_graph(torch: ModuleType, graph: Graph, values: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs of `graph`, whose ops `check_ops` has passed; `values` are its inputs and constants."""
    found: dict[str, Tensor] = dict(values)
    for node in graph.nodes:
        inputs = [found[name] if name else None for name in node.inputs]
        found[node.outputs[0]] = RUNS[node.op](torch, inputs, node.attrs)
    return [found[name] for name in graph.outputs]


def _function(torch: ModuleType, name: str, window: Attributes) -> Callable[..., Tensor]:
    """`conv` and the like for as many dimensions as the window has."""
    function: Callable[..., Tensor] = getattr(torch.nn.functional, f"{name}{len(window['strides'])}d")
    return function


def _padded(torch: ModuleType, x: Tensor, a: Attributes, fill: float) -> tuple[Tensor, tuple[int, ...]]:
    """The input and the symmetric padding; uneven padding is done here."""
    half = len(a["pads"]) // 2
    before, after = a["pads"][:half], a["pads"][half:]
    if before == after:
        return x, tuple(before)
    flat = [size for pair in reversed(list(zip(before, after, strict=True))) for size in pair]
    return torch.nn.functional.pad(x, flat, value=fill), (0,) * half


def _conv(torch: ModuleType, v: Values, a: Attributes) -> Tensor:
    x, padding = _padded(torch, v[0], a, 0.0)
    return _function(torch, "conv", a)(x, *_with_bias(v), a["strides"], padding, a["dilations"], a["group"])


def _conv_transpose(torch: ModuleType, v: Values, a: Attributes) -> Tensor:
    padding = a["pads"][: len(a["pads"]) // 2]
    function = _function(torch, "conv_transpose", a)
    return _apart(
        function(v[0], *_with_bias(v), a["strides"], padding, a["output_padding"], a["group"], a["dilations"])
    )


def _apart(x: Tensor) -> Tensor:
    """`x`, so that inductor does not fold arithmetic on it into the convolution that made it.

    It does so wrongly (2.13): after a transposed one along the wrong dimension of the weights, and for two
    plain numbers with the last one for both.
    """
    return x.neg().neg()


def _with_bias(v: Values) -> tuple[Tensor, Tensor]:
    return v[1], v[2] if len(v) > 2 else None


def _max_pool(torch: ModuleType, v: Values, a: Attributes) -> Tensor:
    x, padding = _padded(torch, v[0], a, float("-inf"))
    return _function(torch, "max_pool", a)(
        x, a["kernel_shape"], a["strides"], padding, a["dilations"], bool(a["ceil_mode"])
    )


def _batch_norm(torch: ModuleType, v: Values, a: Attributes) -> Tensor:
    x, scale, bias, mean, variance = v
    return torch.nn.functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, a["epsilon"])


def _gemm(torch: ModuleType, v: Values, a: Attributes) -> Tensor:
    left, right = (x.T if a[flag] else x for x, flag in ((v[0], "transA"), (v[1], "transB")))
    if len(v) < 3:
        return a["alpha"] * (left @ right)
    return torch.addmm(v[2], left, right, beta=a["beta"], alpha=a["alpha"])


def _depth_to_space(torch: ModuleType, v: Values, a: Attributes) -> Tensor:
    x, block = v[0], a["blocksize"]
    if a["mode"] == "DCR":  # torch's own order is CRD
        x = x.unflatten(1, (block**2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.nn.functional.pixel_shuffle(x, block)


def _resize(torch: ModuleType, v: Values, a: Attributes) -> Tensor:
    way = (a["mode"], a["coordinate_transformation_mode"], a["nearest_mode"])
    if way != ("nearest", "asymmetric", "floor"):
        raise UserError("torch resizes otherwise", where=", ".join(way))
    return torch.nn.functional.interpolate(v[0], a["sizes"][2:])


def _of_torch(name: str) -> Run:
    return lambda torch, v, a: getattr(torch, name)(*v)


RUNS: dict[str, Run] = {
    **{name: _of_torch(name) for name in ("relu", "sigmoid", "tanh", "erf", "exp", "log", "sqrt", "neg",
                                          "add", "sub", "mul", "div", "pow", "matmul")},
    "clip": _of_torch("clamp"),
    "identity": lambda torch, v, a: v[0],
    "hard_sigmoid": lambda torch, v, a: torch.clamp(_apart(v[0]) * a["alpha"] + a["beta"], 0, 1),
    "gelu": lambda torch, v, a: torch.nn.functional.gelu(v[0], approximate=a["approximate"]),
    "softmax": lambda torch, v, a: torch.softmax(v[0], a["axis"]),
    "global_average_pool": lambda torch, v, a: v[0].mean(tuple(range(2, v[0].dim())), keepdim=True),
    "reduce_mean": lambda torch, v, a: v[0].mean(a["axes"], keepdim=bool(a["keepdims"])),
    "layer_normalization": lambda torch, v, a: torch.nn.functional.layer_norm(
        v[0], v[1].shape, *_with_bias(v), a["epsilon"]
    ),
    "reshape": lambda torch, v, a: v[0].reshape(a["shape"]),
    "transpose": lambda torch, v, a: v[0].permute(a["perm"]),
    "concat": lambda torch, v, a: torch.cat(tuple(v), a["axis"]),
    "cast": lambda torch, v, a: v[0].to(getattr(torch, a["to"])),
    "gather": lambda torch, v, a: v[0][(*(slice(None),) * a["axis"], v[1])],
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": _max_pool,
    "batch_normalization": _batch_norm,
    "gemm": _gemm,
    "depth_to_space": _depth_to_space,
    "resize": _resize,
}  # fmt: skip
