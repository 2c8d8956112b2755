"""The path of a model to a GPU: graph -> plan -> kernels of tiles -> compiled, looked at, and cut again.

In: a graph with static shapes and the GPU's name; no GPU need be there. Out: a `GpuCompiled`, whose
program is made when it is asked for, where a GPU is. What a kernel takes of the GPU is known only once it
is compiled, so the plan is made, compiled and judged (`gpu_guard.py`); where a region is to be split, the
plan is made again.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from onepass.core.dtypes import DType
from onepass.core.errors import InternalError
from onepass.core.settings import Settings
from onepass.cost.gpu import Gpu, find_gpu, machine
from onepass.forms.regions import Context, Cut, Shaped
from onepass.fuse.channels_last import channels_last
from onepass.fuse.plan import Plan
from onepass.fuse.planner import FuseMode, make_plan
from onepass.gpu_guard import GpuKernel, Guard, told
from onepass.graph.ir import Graph
from onepass.graph.precision import lower_precision
from onepass.pipeline import Wanted, allocate, labelled, laid_out, simplified
from onepass.runtime.gpu_host import device_of
from onepass.runtime.gpu_program import GpuProgram
from onepass.runtime.program import Launch, Slot
from onepass.tiles.shaper import GpuShaper


@dataclass(frozen=True)
class GpuCompiled:
    """The plan with its ledger, and the kernels of its regions in order (views have none).

    `launches` call them; `slots` tells where their buffers lie, `constants` which of them are to be packed.
    `kept` are the arena offsets of the values that stay there after a run.
    """

    plan: Plan
    shaped: tuple[Shaped | None, ...]
    kernels: tuple[GpuKernel, ...]
    gpu: Gpu
    launches: Sequence[Launch]
    slots: Mapping[str, Slot]
    constants: Wanted
    compile_s: float
    kept: Mapping[str, int]

    @cached_property
    def program(self) -> GpuProgram:
        """Runs the model on the GPU that is present; raises UserError where that is not `gpu`."""
        graph = self.plan.graph
        return GpuProgram(
            dict(zip(self.names, (kernel.built.kernel for kernel in self.kernels), strict=True)),
            self.launches,
            self.slots,
            laid_out(self.constants),
            [(name, graph.types[name]) for name in graph.inputs],
            [(name, graph.types[name]) for name in graph.outputs],
            self.plan.arena_bytes,
            device_of(self.gpu.name),
        )

    @property
    def names(self) -> list[str]:
        """Of each kernel: its place in the order, and what it computes."""
        return [launch.symbol for launch in self.launches]

    @property
    def hits(self) -> int:
        """Kernels whose code was there already."""
        return sum(kernel.compiled.cached for kernel in self.kernels)

    @property
    def misses(self) -> int:
        """Kernels that had to be compiled, repeated ones together."""
        return len(self.kernels) - self.hits


def compile_for_gpu(
    graph: Graph, settings: Settings, target: str, directory: Path | None = None, dtype: DType | None = None,
    keep: bool = False, progress: Callable[[str], None] = lambda step: None,
) -> GpuCompiled:  # fmt: skip
    """Compiles `graph` for the GPU `target` such as `cuda:sm_90`; raises UserError for what is wrong with it.

    `dtype` float16 or bfloat16 lowers the precision of the whole model. Compiled kernels are kept in
    `directory`. `settings.rewrites` that only a CPU has are left out. With `keep` no value is overwritten
    during a run. `progress` is told what is compiled next.
    """
    started = time.perf_counter()
    gpu = find_gpu(target)
    if dtype is not None:
        graph = lower_precision(graph, dtype)
    graph = simplified(graph)
    mode = FuseMode.parse(settings.fuse)
    rewrites = settings.rewrites & {"fold_batch_norm", "online_softmax"}
    shaper = GpuShaper(gpu)
    context = Context(graph, channels_last(graph), machine(gpu), 1, rewrites, shaper=shaper)
    cuts: dict[tuple[frozenset[str], frozenset[str]], Cut] = {}
    while True:
        planned = make_plan(replace(context, cuts=tuple(cuts.values())), mode)
        made = replace(context, graph=planned.plan.graph, layouts=planned.plan.layouts)
        guard = Guard(made, shaper, target, directory, progress)
        kernels = guard.kernels(planned)
        if not guard.cuts:
            break
        more = {(cut.first, cut.second): cut for cut in guard.cuts}
        if more.keys() <= cuts.keys():
            names = ", ".join(sorted(name for cut in guard.cuts for name in cut.first | cut.second))
            raise InternalError("split", f"the nodes {names} were cut apart and are in one region again")
        cuts |= more
    wanted: Wanted = {}
    launches = [_launch(kernel, planned.shaped, made.graph, wanted) for kernel in kernels]
    slots, arena_bytes = allocate(planned.plan, launches, wanted, {}, keep)
    plan = replace(told(planned.plan, kernels), arena_bytes=arena_bytes)
    kept = {name: slot[1] for name, slot in slots.items() if keep and slot[0] == "arena"}
    seconds = time.perf_counter() - started
    return GpuCompiled(plan, planned.shaped, kernels, gpu, launches, slots, wanted, seconds, kept)


def _launch(kernel: GpuKernel, shaped: Sequence[Shaped | None], graph: Graph, wanted: Wanted) -> Launch:
    """The call of a kernel; the constants that it reads are noted in `wanted`."""
    region = shaped[kernel.region]
    assert region is not None
    made = ChainMap(dict(region.body.constants), dict(graph.constants))
    args = labelled(kernel.built.args, kernel.built.packed, made, wanted)
    return Launch(kernel.region, f"{kernel.region:03}_{kernel.built.kernel.name}", args)
