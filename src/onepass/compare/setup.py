"""What every compilation of one session shares: settings, the measured machine, the processor, workers.

In: settings. Out: a `Setup`, or a `GpuSetup`, with each setting checked before any work is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from onepass.compare.tune import Place, tune
from onepass.core.dtypes import BF16, DTYPES, F16, DType
from onepass.core.errors import OptionError, UserError
from onepass.core.settings import FLUSH, Settings
from onepass.cost import gpu as gpus
from onepass.cost.machine import Machine
from onepass.forms.regions import Choices
from onepass.frontends.onnx_model import OnnxModel
from onepass.fuse.planner import FuseMode
from onepass.gpu_pipeline import GpuCompiled, compile_for_gpu
from onepass.graph.ir import Graph
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled, compile_graph
from onepass.report.ledger import check_name
from onepass.runtime.gpu_host import device_of, present_gpu
from onepass.runtime.machine_cache import measure_machine
from onepass.runtime.workers import worker_count
from onepass.targets.cache import default_directory
from onepass.targets.llvm.description import TargetDescription, describe_host
from onepass.zoo.catalog import example_inputs

_measuring = threading.Lock()


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that `compile_graph` needs besides the graph; `step` is told what tuning does next."""

    settings: Settings
    machine: Machine
    target: TargetDescription
    workers: int
    step: Callable[[str], None] = lambda step: None

    def with_fuse(self, fuse: str) -> Setup:
        """The same with another way to fuse."""
        return replace(self, settings=replace(self.settings, fuse=fuse))

    def compile(
        self, graph: Graph, known: Mapping[str, bytes] | None = None, keep: bool = False
    ) -> Compiled:
        """`compile_graph` as set up, and `tune` where that is asked for.

        Raises UserError for a node name in `only=` that the graph does not have.
        """
        _check_names(self.settings, graph)
        settings = self.settings

        def compile_with(choices: Choices | None, known: Mapping[str, bytes]) -> Compiled:
            return compile_graph(
                graph, settings, self.machine, self.target, self.workers, known, keep, choices
            )

        if not settings.tune:
            return compile_with(None, known or {})
        directory = default_directory() if settings.cache else None
        place = Place(self.machine, self.target, self.workers, directory)
        return tune(compile_with, place, known or {}, self.step)


@dataclass(frozen=True, slots=True)
class GpuSetup:
    """As `Setup`, for `gpu`, which need not be there; models are lowered to `dtype` unless that is None."""

    settings: Settings
    gpu: gpus.Gpu
    dtype: DType | None
    step: Callable[[str], None] = lambda step: None

    @property
    def machine(self) -> Machine:
        return gpus.machine(self.gpu)

    @property
    def workers(self) -> int:
        return 1

    def with_fuse(self, fuse: str) -> GpuSetup:
        """The same with another way to fuse."""
        return replace(self, settings=replace(self.settings, fuse=fuse))

    def compile(self, graph: Graph, keep: bool = False) -> GpuCompiled:
        """`compile_for_gpu` as set up; see `Setup.compile`."""
        _check_names(self.settings, graph)
        directory = default_directory() if self.settings.cache else None
        return compile_for_gpu(graph, self.settings, self.gpu.name, directory, self.dtype, keep, self.step)

    def obstacle(self) -> str:
        """Why nothing that is compiled can be run here; '' where it can."""
        try:
            device_of(self.gpu.name)
        except UserError as error:
            return f"{error.what}: {error.why}"
        return ""


def _check_names(settings: Settings, graph: Graph) -> None:
    for name in FuseMode.parse(settings.fuse).names:
        check_name(name, [node.name for node in graph.nodes])


def inputs_of(loaded: OnnxModel, graph: Graph) -> dict[str, Array]:
    """Random inputs for the shapes of `graph`; see `example_inputs`."""
    return example_inputs(loaded.proto, {name: graph.types[name].shape for name in graph.inputs})


def set_up(settings: Settings, step: Callable[[str], None] = lambda step: None) -> Setup:
    """Checks the settings (OptionError) and measures the machine unless its roofs are known."""
    workers = worker_count(settings.threads)
    FuseMode.parse(settings.fuse)
    target = describe_host()
    # Two measurements at a time would disturb each other.
    with _measuring:
        machine = measure_machine(workers=workers)
    return Setup(settings, machine, target, workers, step)


def gpu_setup(
    settings: Settings, target: str | None, dtype: str | None,
    step: Callable[[str], None] = lambda step: None,
) -> GpuSetup | None:  # fmt: skip
    """Checks the settings (OptionError). The target `cuda` is the GPU that is present, or UserError; without
    a target there is no GPU to set up."""
    if target is None:
        if dtype is not None:
            raise OptionError(
                f"a model is compiled in {dtype} for GPUs only", why="there is no target",
                remedy="choose a target, such as cuda:sm_90, or leave out the element type",
            )  # fmt: skip
        return None
    FuseMode.parse(settings.fuse)
    only_cpu = {
        "threads": settings.threads is not None, "tune": settings.tune, FLUSH: FLUSH in settings.rewrites,
    }  # fmt: skip
    for name in (name for name, given in only_cpu.items() if given):
        raise OptionError(
            f"'{name}' is of no use with the target {target}", why="it is about code for the CPU",
            remedy=f"leave out '{name}', or the target",
        )  # fmt: skip
    if dtype not in (None, "float32", F16.name, BF16.name):
        raise OptionError(
            f"a model cannot be compiled in {dtype!r}", where=f"target {target}",
            why="float32 values may become narrower floats, and nothing else",
            remedy="choose float16, bfloat16, or float32 to leave the model as it is",
        )  # fmt: skip
    gpu = gpus.find_gpu(present_gpu() if target == "cuda" else target)
    return GpuSetup(settings, gpu, None if dtype in (None, "float32") else DTYPES[str(dtype)], step)
