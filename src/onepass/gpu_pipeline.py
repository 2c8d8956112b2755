"""The path of a model to a GPU: graph -> plan -> kernels of tiles -> compiled, looked at, and cut again.

In: a graph with static shapes and the GPU's name; no GPU need be there. Out: a `GpuCompiled`. What a
kernel takes of the GPU is known only once it is compiled, so the plan is made, compiled and judged: a kernel
that cannot be launched, or that spills registers, gets another tile; one that no tile helps is split, and
the plan made again without it. Each such step is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onepass.core.dtypes import DType
from onepass.core.settings import Settings
from onepass.cost.gpu import Gpu, Occupancy, find_gpu, machine, occupancy
from onepass.cost.roofline import Estimate
from onepass.forms.nest import FormMismatch
from onepass.forms.regions import Context, Shaped
from onepass.fuse.channels_last import channels_last
from onepass.fuse.plan import Plan
from onepass.fuse.planner import FuseMode, Planned, make_plan
from onepass.graph.ir import Graph
from onepass.graph.precision import lower_precision
from onepass.pipeline import GRAPH_PASSES
from onepass.targets.triton.compile import CompiledTile, compile_tiles
from onepass.tiles.builder import TileBuilt
from onepass.tiles.choose import Candidate
from onepass.tiles.shaper import GpuShaper

TRIED = 6  # tiles of a region that are compiled before it is split
ROUNDS = 12  # plans that are made; each forbids what the one before could not cut


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """One kernel as compiled. `steps` tells, in words, every tile that was refused before this one."""

    region: int
    built: TileBuilt
    compiled: CompiledTile
    occupancy: Occupancy
    estimate: Estimate
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuCompiled:
    """The plan with its ledger, beside the kernels of its regions in order (views have none).

    `splits`: node names of each region that was given up, joined, with the reason.
    """

    plan: Plan
    shaped: tuple[Shaped | None, ...]
    kernels: tuple[GpuKernel, ...]
    gpu: Gpu
    splits: Mapping[str, str] = field(default_factory=dict)


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
    refused: dict[frozenset[str], str] = {}
    while True:
        planned = make_plan(replace(context, refused=refused), mode)
        made = replace(context, graph=planned.plan.graph, layouts=planned.plan.layouts)
        guard = _Guard(made, shaper, target, directory)
        kernels = guard.kernels(planned)
        if not guard.hopeless or len(refused) >= ROUNDS:
            splits = {", ".join(sorted(names)): why for names, why in refused.items()}
            return GpuCompiled(planned.plan, planned.shaped, kernels, gpu, splits)
        refused |= guard.hopeless


class _Guard:
    """Compiles the kernels of a plan and cuts those that do not fit into other tiles.

    `hopeless`: the nodes of each region of several that no tile fits, and why.
    """

    def __init__(self, context: Context, shaper: GpuShaper, target: str, directory: Path | None) -> None:
        self.context, self.shaper, self.target, self.directory = context, shaper, target, directory
        self.hopeless: dict[frozenset[str], str] = {}

    def kernels(self, planned: Planned) -> tuple[GpuKernel, ...]:
        """The kernel of each region that computes something; all first choices are compiled together."""
        graph = self.context.graph
        regions = {
            number: shaped for number, shaped in enumerate(planned.shaped)
            if shaped is not None and graph.types[shaped.outputs[0]].size > 0
        }  # fmt: skip
        first = {
            number: self.shaper.build(self.context, shaped, shaped.tile)
            for number, shaped in regions.items() if shaped.tile
        }  # fmt: skip
        found = compile_tiles([built.kernel for built in first.values()], self.target, self.directory)
        return tuple(
            self._settled(number, regions[number], first[number], compiled)
            for number, compiled in zip(first, found, strict=True)
        )

    def _settled(self, number: int, shaped: Shaped, built: TileBuilt, compiled: CompiledTile) -> GpuKernel:
        """The kernel as built, or with the first other tile that is launched and does not spill."""
        kernel = self._kernel(number, built, compiled, shaped.estimate)
        objection = self._objection(kernel)
        steps: list[str] = []
        if not objection:
            return kernel
        best = kernel
        for other in self._others(shaped):
            steps.append(f"tile {shaped.tile}: {objection}")
            try:
                built = self.shaper.build(self.context, shaped, other.tile)
            except FormMismatch:
                continue
            compiled = compile_tiles([built.kernel], self.target, self.directory)[0]
            tried = self._kernel(number, built, compiled, other.estimate)
            objection = self._objection(tried)
            best = replace(tried, steps=(*steps, f"tile {other.tile}: {_taken(tried)}"))
            shaped = replace(shaped, tile=other.tile)
            if not objection:
                return best
        if len(shaped.nodes) > 1:
            self.hopeless[frozenset(node.name for node in shaped.nodes)] = f"in every tile {objection}"
        return best

    def _others(self, shaped: Shaped) -> Sequence[Candidate]:
        found = self.shaper.candidates(self.context, shaped.body, shaped.form)
        return [candidate for candidate in found if candidate.tile != shaped.tile][: TRIED - 1]

    def _kernel(self, number: int, built: TileBuilt, compiled: CompiledTile, guess: Estimate) -> GpuKernel:
        gpu, resources = self.shaper.gpu, compiled.resources
        room = Occupancy(0, 0.0, "it cannot be compiled")
        if resources is not None and not compiled.refusal:
            room = occupancy(resources, built.kernel.warps, gpu)
        return GpuKernel(number, built, compiled, room, guess)

    def _objection(self, kernel: GpuKernel) -> str:
        """Why a kernel is not to be used as it is; '' where it is. First of all whether it can run at all."""
        if kernel.compiled.refusal:
            return f"it cannot be launched: {kernel.compiled.refusal}"
        resources = kernel.compiled.resources
        return _taken(kernel) if resources is not None and resources.spill_bytes else ""


def _taken(kernel: GpuKernel) -> str:
    resources = kernel.compiled.resources
    if resources is None:
        return kernel.compiled.refusal
    return (
        f"{resources.registers} registers, {resources.spill_bytes:,} bytes spilled a thread, "
        f"occupancy {kernel.occupancy.share:.0%} (limited by {kernel.occupancy.limiter})"
    )
