"""The same model on other runtimes: ONNX Runtime, OpenVINO and PyTorch, each as it is meant to be used.

In: a model, example inputs and a number of threads. Out: a `Peer`, a function to time. None of them is
needed by onepass; one that is not installed is an error that says how to get it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from onepass.compare.torch_ops import Tensor, check_ops, numbers_of, run_graph
from onepass.core.errors import OptionError, UserError
from onepass.frontends.onnx_embed import self_contained
from onepass.frontends.onnx_model import OnnxModel
from onepass.graph.ir import Graph
from onepass.ops.opdef import Array


@dataclass(frozen=True, slots=True)
class Peer:
    """`run` computes the outputs in the model's order; `label` names the runtime and its version."""

    name: str
    label: str
    run: Callable[[], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Task:
    """What every peer is given: the model with its shapes declared, its graph, its inputs by name."""

    loaded: OnnxModel
    graph: Graph
    inputs: Mapping[str, Array]
    workers: int

    def model(self) -> bytes:
        """The model for this task's shapes."""
        ends = (*self.graph.inputs, *self.graph.outputs)
        return self_contained(self.loaded, {name: self.graph.types[name].shape for name in ends})


def check_peers(names: Iterable[str]) -> None:
    """Raises OptionError for a name that is not a peer's."""
    for name in names:
        if name not in _PEERS:
            raise OptionError(f"'{name}' is not a peer", remedy=f"use some of {', '.join(_PEERS)}")


def open_peer(name: str, task: Task) -> Peer:
    """The peer `name`, which has run once. Opening torch again makes the one before compile again.

    Raises UserError where it is not installed or cannot run the model.
    """
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"{name} is not installed", why=str(error), remedy="pip install 'onepass[peers]'"
        ) from error
    try:
        peer = _PEERS[name](module, task)
        peer.run()
        return peer
    except UserError:
        raise
    except Exception as error:  # a peer's own errors have no common type
        reason = " ".join((str(error) or repr(error)).split())[:200]
        raise UserError(f"{name} cannot run this model", why=reason) from error


def _onnxruntime(ort: ModuleType, task: Task) -> Peer:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = task.workers, 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    session = ort.InferenceSession(task.model(), options, providers=["CPUExecutionProvider"])
    feed = dict(task.inputs)
    return Peer("onnxruntime", f"onnxruntime {ort.__version__}", lambda: session.run(None, feed))


def _openvino(ov: ModuleType, task: Task) -> Peer:
    core = ov.Core()
    # Its default on a processor with AMX or bfloat16 units is to compute in less than float32.
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": task.workers,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = core.compile_model(core.read_model(task.model()), "CPU", options).create_infer_request()
    feed = dict(task.inputs)
    version = str(ov.__version__).split("-")[0]

    def run() -> Sequence[Array]:
        found = request.infer(feed, share_inputs=True, share_outputs=True)
        return tuple(found.values())

    return Peer("openvino", f"openvino {version} f32", run)


def _torch(torch: ModuleType, task: Task) -> Peer:
    """Compiled by inductor, which folds and packs the constants of a module, batch norms among them."""
    graph = task.graph
    check_ops(graph)
    _check_compiler()
    torch.set_num_threads(task.workers)
    config: Any = importlib.import_module("torch._inductor.config")
    config.freezing = True
    torch.compiler.reset()  # it keeps a handful of compilations of one function, then refuses more
    numbers = numbers_of(graph)
    arrays = {name: a for name, a in graph.constants.items() if name not in numbers}
    weights = torch.nn.ParameterList(
        torch.nn.Parameter(torch.from_numpy(np.array(a)), requires_grad=False) for a in arrays.values()
    )
    inputs = [torch.from_numpy(task.inputs[name]) for name in graph.inputs]

    @torch.compile(fullgraph=True)  # type: ignore[untyped-decorator]
    def network(*given: Tensor) -> list[Tensor]:
        tensors = zip((*graph.inputs, *arrays), (*given, *weights), strict=True)
        return run_graph(torch, graph, numbers | dict(tensors))

    def run() -> Sequence[Array]:
        with torch.inference_mode():
            return [value.numpy() for value in network(*inputs)]

    return Peer("torch", f"torch {torch.__version__.split('+')[0]} compile", run)


def _check_compiler() -> None:
    """Raises UserError where inductor finds no C++ compiler."""
    builder = importlib.import_module("torch._inductor.cpp_builder")
    try:
        builder.get_cpp_compiler()
    except Exception as error:  # inductor's own error type has moved between versions
        raise UserError(
            "torch.compile needs a C++ compiler", why=str(error).strip().partition("\n")[0],
            remedy="install g++, or name another compiler in the environment variable CXX",
        ) from error  # fmt: skip


_PEERS: dict[str, Callable[[ModuleType, Task], Peer]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
}
