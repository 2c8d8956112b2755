"""The path of a model to a GPU: graph -> plan -> kernels of tiles -> compiled, looked at, and cut again.

In: a graph with static shapes and the GPU's name; no GPU need be there. Out: a `GpuCompiled`. What a
kernel takes of the GPU is known only once it is compiled, so the plan is made, compiled and judged
(`gpu_guard.py`); where a region is to be split, the plan is made again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from onepass.core.dtypes import DType
from onepass.core.settings import Settings
from onepass.cost.gpu import Gpu, find_gpu, machine
from onepass.forms.regions import Context, Cut, Shaped
from onepass.fuse.channels_last import channels_last
from onepass.fuse.plan import Plan
from onepass.fuse.planner import FuseMode, make_plan
from onepass.gpu_guard import GpuKernel, Guard, told
from onepass.graph.ir import Graph
from onepass.graph.precision import lower_precision
from onepass.pipeline import GRAPH_PASSES
from onepass.tiles.shaper import GpuShaper


@dataclass(frozen=True, slots=True)
class GpuCompiled:
    """The plan with its ledger, beside the kernels of its regions in order (views have none)."""

    plan: Plan
    shaped: tuple[Shaped | None, ...]
    kernels: tuple[GpuKernel, ...]
    gpu: Gpu


def compile_for_gpu(
    graph: Graph, settings: Settings, target: str, directory: Path | None = None, dtype: DType | None = None
) -> GpuCompiled:
    """Compiles `graph` for the GPU `target` such as `cuda:sm_90`; raises UserError for what is wrong with it.

    `dtype` float16 or bfloat16 lowers the precision of the whole model. Compiled kernels are kept in
    `directory`. `settings.rewrites` that only a CPU has are left out.
    """
    gpu = find_gpu(target)
    if dtype is not None:
        graph = lower_precision(graph, dtype)
    for step in GRAPH_PASSES:
        graph = step(graph)
    mode = FuseMode.parse(settings.fuse)
    rewrites = settings.rewrites & {"fold_batch_norm"}
    shaper = GpuShaper(gpu)
    context = Context(graph, channels_last(graph), machine(gpu), 1, rewrites, shaper=shaper)
    cuts: dict[tuple[frozenset[str], frozenset[str]], Cut] = {}
    while True:
        planned = make_plan(replace(context, cuts=tuple(cuts.values())), mode)
        made = replace(context, graph=planned.plan.graph, layouts=planned.plan.layouts)
        guard = Guard(made, shaper, target, directory)
        kernels = guard.kernels(planned)
        more = {(cut.first, cut.second): cut for cut in guard.cuts}
        if more.keys() <= cuts.keys():
            return GpuCompiled(told(planned.plan, kernels), planned.shaped, kernels, gpu)
        cuts |= more
