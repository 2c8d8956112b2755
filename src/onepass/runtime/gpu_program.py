"""A program for a GPU: kernels of tiles in order, their buffers, and one call that runs them all.

In: arrays of numpy or tensors of PyTorch, in the order of the model's inputs. Out: the same kind, in the
order of its outputs. All buffers stay where they are, so that the launches are recorded once, as a CUDA
graph, and replayed by one call. On `cpu`, where Triton interprets, they run one by one.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onepass.core.dtypes import BOOL, DType
from onepass.core.errors import InternalError
from onepass.core.files import write_text
from onepass.core.tensor import TensorType
from onepass.loops.ir import Buffer
from onepass.loops.tile import TileKernel
from onepass.runtime.gpu_host import check_memory, find_device, interpreted, out_of_memory, require
from onepass.runtime.program import Launch, Slot, check_count, mismatch
from onepass.runtime.trace import LaunchTime, Trace
from onepass.targets.triton.compile import canonical

Array = npt.NDArray[Any]
Tensor = Any
"""A `torch.Tensor`; PyTorch is loaded when a program is made."""
CYCLES_PER_S = 2_000_000_000
"""A GPU's clock, roughly: how long it is kept busy while launches queue up to be timed."""


def load_functions(kernels: Mapping[str, TileKernel], folder: Path) -> dict[str, Any]:
    """The function of each of `kernels`, whose sources are written to `folder`: Triton reads them from there.

    Kernels that differ in names alone share the first one's: each is compiled when it is first launched.
    """
    functions: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for name, kernel in kernels.items():
        path = folder / f"{name}.py"
        write_text(path, kernel.source)
        code = canonical(kernel)
        if code not in first:
            spec = importlib.util.spec_from_file_location(f"onepass_kernels.{path.stem}", path)
            assert spec is not None and spec.loader is not None, "the suffix is .py"
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            first[code] = getattr(module, kernel.name)
        functions[name] = first[code]
    return functions


class GpuProgram:
    """Runs a compiled model on a GPU; safe to call from several threads, which then take turns."""

    def __init__(
        self,
        kernels: Mapping[str, TileKernel],
        launches: Sequence[Launch],
        slots: Mapping[str, Slot],
        constants: Mapping[str, Array],
        inputs: Sequence[tuple[str, TensorType]],
        outputs: Sequence[tuple[str, TensorType]],
        arena_bytes: int,
        device: str = "cuda",
        folder: Path | None = None,
    ) -> None:
        """`launches` name `kernels` by symbol. Sources go to `folder`, else to one deleted with the program.

        Uploads the constants and allocates every buffer. Raises UserError or OptionError where PyTorch,
        Triton, a GPU that they support or enough of its memory is missing.
        """
        self.launches, self.slots = tuple(launches), slots
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.arena_bytes, self.constants = arena_bytes, constants
        self._torch = require("torch")
        require("triton")
        self.device = find_device(self._torch, device)
        self._temporary = tempfile.TemporaryDirectory(prefix="onepass-") if folder is None else None
        sources = Path(self._temporary.name) if self._temporary else Path(str(folder))
        functions = load_functions(kernels, sources)
        ends = [kind for _, kind in (*self.inputs, *self.outputs)]
        self.device_bytes = arena_bytes + sum(array.nbytes for array in constants.values())
        self.device_bytes += sum(kind.size_bytes for kind in ends)
        check_memory(self._torch, self.device, self.device_bytes)
        try:
            with self._torch.inference_mode(False):  # else runs outside it could not write to them
                self._arena = self._torch.zeros(arena_bytes, dtype=self._torch.uint8, device=self.device)
                self._in, self._out = ([self._bytes(kind.size_bytes) for _, kind in given]
                                       for given in (self.inputs, self.outputs))  # fmt: skip
                self._constants = {name: self._uploaded(array) for name, array in constants.items()}
        except self._torch.cuda.OutOfMemoryError as error:
            raise out_of_memory(self._torch, self.device, self.device_bytes, str(error)) from error
        self._calls = [self._call(kernels[launch.symbol], functions[launch.symbol], launch.args)
                       for launch in self.launches]  # fmt: skip
        self._graph: Any = None
        self._lock = threading.Lock()
        self._done: Any = None

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The model's outputs for its inputs, in order: tensors on the program's device if one input is a
        tensor, else numpy arrays.

        Raises ShapeError, in the model's input names, when the count, a shape or a dtype is wrong.
        """
        ready = self._checked(arrays)
        with self._lock, self._on_device():
            self._copy_in(ready)
            self._replay()
            kinds = [kind for _, kind in self.outputs]
            results = tuple(map(self._result, self._out, kinds))
            self._mark_done()
            if any(self._torch.is_tensor(array) for array in ready):
                return results
            return tuple(map(self._to_numpy, results, kinds))

    def run_timed(self, arrays: Sequence[Any]) -> float:
        """Seconds of one `run`, until its results are there; checks and copies included."""
        start = time.perf_counter()
        self.run(arrays)
        self._wait()
        return time.perf_counter() - start

    def trace(self, arrays: Sequence[Any], runs: int = 20) -> Trace:
        """Times of each launch, and of all together, over `runs` runs after a warm-up, by the device's clock.

        Copies of inputs and outputs are not counted, nor the host's time: it is ahead of the device.
        """
        ready = self._checked(arrays)
        seconds, whole = np.zeros((runs, len(self._calls))), np.zeros(runs)
        with self._lock, self._on_device():
            self._copy_in(ready)
            self._replay()
            start = time.perf_counter()
            self._launch_all()
            queued_s = time.perf_counter() - start
            for run in range(runs):
                whole[run] = self._timed([self._replay], 0.0)[0]
                seconds[run] = self._timed(self._calls, queued_s)
        each = tuple(
            LaunchTime(launch.region, launch.symbol, float(column.min()), float(np.median(column)))
            for launch, column in zip(self.launches, seconds.T, strict=True)
        )
        return Trace(each, float(whole.min()), statistics.median(whole.tolist()), runs, 1)

    def peek(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy of what lies in the arena at `offset` after the last run."""
        size = math.prod(shape) * dtype.itemsize
        found: Array = self._arena[offset : offset + size].cpu().numpy().view(dtype).reshape(shape)
        return found.copy()

    def _on_device(self) -> Any:
        return self._torch.cuda.device(self.device if self.device.type == "cuda" else -1)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)

    def _bytes(self, size: int) -> Tensor:
        """`size` bytes on the device."""
        return self._torch.empty(size, dtype=self._torch.uint8, device=self.device)

    def _host_bytes(self, array: Array) -> Tensor:
        """The bytes of `array`, which may be read-only and of a type that torch has no numpy name for."""
        held = self._torch.empty(array.nbytes, dtype=self._torch.uint8)
        held.numpy()[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return held

    def _uploaded(self, array: Array) -> Tensor:
        return self._host_bytes(array).to(self.device)

    def _dtype(self, dtype: DType) -> Any:
        return getattr(self._torch, dtype.name)

    def _call(self, kernel: TileKernel, function: Any, args: Sequence[str]) -> Callable[[], object]:
        """One launch, with the views that its parameters are."""
        views = [self._view(name, buffer) for name, buffer in zip(args, kernel.params, strict=True)]
        launch, options = function[kernel.grid], {"num_warps": kernel.warps, "num_stages": kernel.stages}
        # Each operation rounds by itself, as ONNX and the other targets have it, and subnormal numbers stay.
        options |= {"enable_fp_fusion": False}
        if not interpreted() and self._torch.version.hip is None:
            options["enable_reflect_ftz"] = False
        if kernel.max_registers is not None:
            options["maxnreg"] = kernel.max_registers
        return lambda: launch(*views, **options)

    def _view(self, name: str, buffer: Buffer) -> Tensor:
        """The bytes behind `name` as elements of `buffer`.

        Bools are passed as int8: Triton would take a torch.bool for a pointer to single bits.
        """
        slot = self.slots[name]
        if slot[0] == "arena":
            base, start = self._arena, slot[1]
        elif slot[0] == "constant":
            base, start = self._constants[slot[1]], 0
        else:
            base = (self._in if slot[0] == "input" else self._out)[slot[1]]
            start = slot[2] if len(slot) == 3 else 0
        if start + buffer.size_bytes > base.numel():
            raise InternalError("gpu_program", f"'{name}' has fewer bytes than parameter '{buffer.name}'")
        dtype = self._torch.int8 if buffer.dtype == BOOL else self._dtype(buffer.dtype)
        return base[start : start + buffer.size_bytes].view(dtype)

    def _launch_all(self) -> None:
        for call in self._calls:
            call()

    def _replay(self) -> None:
        """Runs every launch: recorded as a CUDA graph the first time, when the inputs are there to run on."""
        if self.device.type != "cuda" or interpreted():
            self._launch_all()
            return
        if self._graph is None:
            # Compilation is not allowed while recording, so all run once before.
            self._launch_all()
            self._wait()
            graph = self._torch.cuda.CUDAGraph()
            with self._torch.cuda.graph(graph):
                self._launch_all()
            self._graph = graph
        self._graph.replay()

    def _timed(self, calls: Sequence[Callable[[], object]], queued_s: float) -> list[float]:
        """Seconds of each of `calls`; the device waits until the host, which takes `queued_s`, is ahead."""
        if self.device.type != "cuda":
            stamps = [time.perf_counter()]
            for call in calls:
                call()
                stamps.append(time.perf_counter())
            return np.diff(stamps).tolist()
        events = [self._torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
        self._torch.cuda._sleep(int(2 * queued_s * CYCLES_PER_S) + 100_000)
        events[0].record()
        for call, event in zip(calls, events[1:], strict=True):
            call()
            event.record()
        self._wait()
        return [a.elapsed_time(b) * 1e-3 for a, b in pairwise(events)]

    def _copy_in(self, ready: Sequence[Any]) -> None:
        """Copies the inputs to where the launches read them, once the run before has left its buffers."""
        if self._done is not None:
            self._torch.cuda.current_stream().wait_event(self._done)
        for static, array in zip(self._in, ready, strict=True):
            if self._torch.is_tensor(array):
                flat = array.detach().contiguous().reshape(-1)
                static.copy_(flat.view(self._torch.uint8))
            else:
                static.copy_(self._host_bytes(array))

    def _mark_done(self) -> None:
        """Notes where in the caller's stream this run ends: the next caller may have another stream."""
        if self.device.type == "cuda":
            self._done = self._torch.cuda.current_stream().record_event()

    def _result(self, out: Tensor, kind: TensorType) -> Tensor:
        """A copy of an output that later runs leave alone."""
        return out.clone().view(self._dtype(kind.dtype)).reshape(kind.shape)

    def _to_numpy(self, tensor: Tensor, kind: TensorType) -> Array:
        flat: Array = tensor.reshape(-1).view(self._torch.uint8).cpu().numpy()
        return flat.view(kind.dtype.numpy).reshape(kind.shape)

    def _checked(self, arrays: Sequence[Any]) -> list[Any]:
        """The inputs as arrays or tensors of the declared types; raises ShapeError."""
        check_count(self.inputs, len(arrays))
        ready = []
        for (name, kind), given in zip(self.inputs, arrays, strict=True):
            array = given if self._torch.is_tensor(given) else np.asarray(given)
            dtype, shape = str(array.dtype).removeprefix("torch."), tuple(array.shape)
            if dtype != kind.dtype.name or shape != kind.shape:
                raise mismatch(name, kind, dtype, shape)
            ready.append(array)
        return ready
