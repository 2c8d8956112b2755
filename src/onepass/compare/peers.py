"""The same model on other runtimes: ONNX Runtime, OpenVINO and PyTorch, each as it is meant to be used.

In: a model, example inputs and a number of threads. Out: a `Peer`, a function to time. None of them is
needed by onepass; one that is not installed is an error that says how to get it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from onepass.compare.torch_ops import run_graph
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
    """The peer `name`, ready to run.

    Raises UserError where it is not installed or cannot run the model.
    """
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"{name} is not installed", why=str(error), remedy="pip install 'onepass[peers]'"
        ) from error
    try:
        return _PEERS[name](module, task)
    except UserError:
        raise
    except Exception as error:  # a peer's own errors have no common type
        reason = (str(error).strip() or repr(error)).splitlines()[0]
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
    torch.set_num_threads(task.workers)
    graph = task.graph
    constants = {name: torch.from_numpy(np.array(array)) for name, array in graph.constants.items()}
    inputs = {name: torch.from_numpy(array) for name, array in task.inputs.items()}

    def run() -> Sequence[Array]:
        with torch.inference_mode():
            return [value.numpy() for value in run_graph(torch, graph, {**constants, **inputs})]

    run()
    return Peer("torch", f"torch {torch.__version__} eager", run)


_PEERS: dict[str, Callable[[ModuleType, Task], Peer]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
}
