"""What kernels take of a GPU is known once they are compiled: what does not fit gets other tiles or is split.

In: a plan. Out: for each region the kernel that it runs as, with every tile that was tried, and `Cut`s for
regions that no tile fits. A kernel is refused that cannot be launched or that spills registers; and one of
several nodes that leaves room for so few programs that their loads do not keep memory busy, if its nodes'
own kernels do better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onepass.core.errors import ModelError
from onepass.cost.gpu import Fit, Occupancy, bytes_in_flight_needed, occupancy
from onepass.cost.roofline import Estimate
from onepass.forms.nest import FormMismatch
from onepass.forms.regions import Context, Cut, Shaped, shape_region
from onepass.fuse.plan import Plan
from onepass.fuse.planner import Planned
from onepass.fuse.split import cheapest_split, leaving, names_of
from onepass.graph.ir import Node
from onepass.loops.tile import Tile
from onepass.targets.triton.compile import CompiledTile, compile_tiles
from onepass.tiles.builder import TileBuilt
from onepass.tiles.choose import Candidate
from onepass.tiles.shaper import GpuShaper

TRIED = 6  # tiles of a region that are compiled before it is split


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """One kernel as compiled. `steps`: every tile that was tried, the last as it runs."""

    region: int
    tile: Tile
    built: TileBuilt
    compiled: CompiledTile
    occupancy: Occupancy
    estimate: Estimate
    steps: tuple[Fit, ...]

    def fit(self, what: str, objection: str) -> Fit:
        """As a step of the search."""
        return Fit(what, objection, self.compiled.resources, self.occupancy, self.bytes_in_flight)

    @property
    def bytes_in_flight(self) -> int:
        """Of loads, on an SM."""
        return self.occupancy.blocks_per_sm * self.built.bytes_in_flight

    @property
    def spill_bytes(self) -> int:
        """Of a thread; 0 where no code was made."""
        return self.compiled.resources.spill_bytes if self.compiled.resources else 0


@dataclass(slots=True)
class _Search:
    """The tiles of one region that are still to be tried, and the kernel that fits best so far."""

    number: int
    name: str
    shaped: Shaped
    tiles: list[Candidate]
    steps: list[Fit] = field(default_factory=list)
    tried: int = 0
    built: TileBuilt | None = None
    guess: Candidate | None = None
    best: GpuKernel | None = None
    spilled: set[Tile] = field(default_factory=set)  # with any number of stages


class Guard:
    """Compiles the kernels of a plan for the GPU `target`; compiled code is kept in `directory`.

    `step` is told what is compiled next.
    """

    def __init__(
        self, context: Context, shaper: GpuShaper, target: str, directory: Path | None,
        step: Callable[[str], None] = lambda step: None,
    ) -> None:  # fmt: skip
        self.context, self.shaper, self.target, self.directory = context, shaper, target, directory
        self.step = step
        self.cuts: list[Cut] = []

    def kernels(self, planned: Planned) -> tuple[GpuKernel, ...]:
        """The kernel of each region that computes something; `cuts` then tells which regions do not fit.

        The kernels of those that are cut are none to run.
        """
        types = self.context.graph.types
        searches = [
            _Search(region.id, region.name, shaped, self._tiles(shaped))
            for region, shaped in zip(planned.plan.regions, planned.shaped, strict=True)
            if shaped is not None and types[shaped.outputs[0]].size > 0
        ]
        waiting = [search for search in searches if self._build_next(search)]
        while waiting:
            self.step(f"compiling {len(waiting)} kernel{'s'[: len(waiting) - 1]} for {self.target}")
            kernels = self._compile([search.built for search in waiting if search.built])
            refused = [
                search for search, compiled in zip(waiting, kernels, strict=True)
                if not self._fits(search, compiled)
            ]  # fmt: skip
            waiting = [search for search in refused if self._build_next(search)]
        found = [self._settled(search) for search in searches]
        return tuple(kernel for kernel in found if kernel is not None)

    def _compile(self, built: Sequence[TileBuilt]) -> list[CompiledTile]:
        return compile_tiles([each.kernel for each in built], self.target, self.directory)

    def _tiles(self, shaped: Shaped) -> list[Candidate]:
        found = self.shaper.candidates(self.context, shaped.body, shaped.form)
        return sorted(found, key=lambda candidate: candidate.tile != shaped.tile)

    def _build_next(self, search: _Search) -> bool:
        """Builds the next tile that may fit, False where none is left.

        Code for one whose values exceed the registers several times takes up to a minute to compile.
        """
        most = self.shaper.gpu.max_registers
        while search.tiles and search.tried < TRIED:
            guess = search.tiles.pop(0)
            if replace(guess.tile, stages=0) in search.spilled:
                continue
            try:
                built = self.shaper.build(self.context, search.shaped, guess.tile)
            except FormMismatch:
                continue
            except ModelError as error:
                where = "node " + ", ".join(f"'{node.user_name}'" for node in search.shaped.nodes)
                raise ModelError(error.what, where=where, why=error.why, remedy=error.remedy) from None
            live = built.live_words // (built.kernel.warps * self.shaper.gpu.warp_size)
            if live > most and (search.tiles or len(search.shaped.nodes) > 1):
                objection = f"a thread would hold {live} values of 32 bits in {most} registers"
                search.steps.append(Fit(_what(search, guess), objection))
                continue
            search.built, search.guess, search.tried = built, guess, search.tried + 1
            return True
        return False

    def _fits(self, search: _Search, compiled: CompiledTile) -> bool:
        """Judges what became of `search.built`."""
        built, guess, gpu = search.built, search.guess, self.shaper.gpu
        assert built is not None and guess is not None
        kernel = self._kernel(search.number, guess, built, compiled)
        objection = self._objection(search.shaped, kernel)
        search.steps.append(kernel.fit(_what(search, guess), objection))
        if search.best is None or not objection or self._badness(kernel) < self._badness(search.best):
            search.best = kernel
        tile, resources = guess.tile, compiled.resources
        if kernel.spill_bytes:
            search.spilled.add(replace(tile, stages=0))
        at_cliff = kernel.spill_bytes and resources and resources.registers < gpu.max_registers // 2
        if at_cliff and tile.max_registers is None:  # the assembler gave up: last, ask for all registers
            limited = replace(guess, tile=replace(tile, max_registers=gpu.max_registers))
            search.tiles.insert(max(0, TRIED - 1 - search.tried), limited)
        return not objection

    def _objection(self, shaped: Shaped, kernel: GpuKernel) -> str:
        """Why a kernel is not to be used as it is; '' where it is. First of all whether it can run at all."""
        if kernel.compiled.refusal:
            return f"it cannot be launched: {kernel.compiled.refusal}"
        if kernel.spill_bytes:
            return "it spills registers"
        needed, found = bytes_in_flight_needed(self.shaper.gpu), kernel.bytes_in_flight
        if len(shaped.nodes) < 2 or found >= needed or kernel.occupancy.limiter in ("warps", "blocks"):
            return ""
        alone = min(each.bytes_in_flight for each in self._apart([node] for node in shaped.nodes))
        if found >= alone:
            return ""
        return (
            f"its loads have {found:,} bytes under way on an SM, of {needed:,.0f} that keep memory busy and "
            f"{alone:,} in the kernels of its nodes alone"
        )

    def _kernel(self, number: int, guess: Candidate, built: TileBuilt, compiled: CompiledTile) -> GpuKernel:
        room = Occupancy(0, 0.0, "it cannot be compiled")
        if compiled.resources is not None:
            room = occupancy(compiled.resources, built.kernel.warps, self.shaper.gpu)
        return GpuKernel(number, guess.tile, built, compiled, room, guess.estimate, ())

    def _apart(self, parts: Iterable[Sequence[Node]]) -> list[GpuKernel]:
        """Each of `parts` as a kernel of its own; raises `FormMismatch` where one has no form."""
        context, found = self.context, []
        for part in parts:
            shaped = shape_region(context, part, leaving(context.graph, part))
            assert shaped.tile is not None
            guess = Candidate(shaped.tile, shaped.estimate)
            found.append((guess, self.shaper.build(context, shaped, shaped.tile)))
        compiled = self._compile([built for _, built in found])
        return [self._kernel(-1, *pair, code) for pair, code in zip(found, compiled, strict=True)]

    def _badness(self, kernel: GpuKernel) -> tuple[bool, int, float]:
        return bool(kernel.compiled.refusal), kernel.spill_bytes, self._seconds(kernel)

    def _seconds(self, kernel: GpuKernel) -> float:
        """As predicted, but with what memory delivers to the bytes in flight of this kernel (Little)."""
        guess = kernel.estimate
        share = min(1.0, kernel.bytes_in_flight / bytes_in_flight_needed(self.shaper.gpu))
        memory_s = guess.traffic.bytes_at.get("memory", 0) / self.shaper.gpu.roof("memory")
        return max(guess.seconds, memory_s / share + guess.launch_s if share else 0.0)

    def _settled(self, search: _Search) -> GpuKernel | None:
        """The best kernel of a region; a cut is noted where even that is not to be used."""
        best, steps = search.best, search.steps
        if best is not None and not steps[-1].objection:
            return replace(best, steps=tuple(steps))
        nodes = search.shaped.nodes
        if len(nodes) > 1:
            parts = cheapest_split(self.context.graph, self.context.layouts, nodes, search.shaped.in_cache)
            if best is None or best.compiled.refusal or best.spill_bytes or self._is_slower(best, parts):
                first, second = map(names_of, parts)
                self.cuts.append(Cut(first, second - first, tuple(steps)))
                return best
        if best is None or best.compiled.refusal:
            raise ModelError(
                f"no kernel of this node fits {self.target}",
                where="node " + ", ".join(f"'{node.user_name}'" for node in nodes),
                why=steps[-1].objection if steps else "its shape has no tile",
                remedy="choose another --target, or a --dtype of 16 bits; the CPU runs it",
            )
        why = "only one node is left" if len(nodes) == 1 else "no other way is faster"
        return replace(best, steps=(*steps, best.fit(f"{search.name} in tiles of {best.tile}, as {why}", "")))

    def _is_slower(self, kernel: GpuKernel, parts: Iterable[Sequence[Node]]) -> bool:
        """Than its parts as kernels of their own."""
        try:
            return self._seconds(kernel) > sum(map(self._seconds, self._apart(parts)))
        except FormMismatch:
            return False


def _what(search: _Search, guess: Candidate) -> str:
    return f"{search.name} in tiles of {guess.tile}"


def told(plan: Plan, kernels: Iterable[GpuKernel]) -> Plan:
    """`plan` with what was compiled in its ledger, and each region as it is predicted in its kernel's tiles.

    An edge within a kernel gets that kernel's steps; one that was cut those before and after; others the
    steps of kernels at their ends for which some tile was refused.
    """
    kernel_of = {node.name: kernel for kernel in kernels for node in plan.regions[kernel.region].nodes}
    decisions = []
    for decision in plan.decisions:
        ends = [kernel_of[name] for name in (decision.producer, decision.consumer) if name in kernel_of]
        inside = len(ends) == 2 and ends[0] is ends[1]
        fits = decision.fits + tuple(
            step
            for kernel in {kernel.region: kernel for kernel in ends}.values()
            if inside or decision.fits or len(kernel.steps) > 1
            for step in kernel.steps
        )
        decisions.append(replace(decision, fits=fits))
    estimates = {kernel.region: kernel.estimate for kernel in kernels}
    regions = (
        replace(region, estimate=estimates.get(region.id, region.estimate)) for region in plan.regions
    )
    return replace(plan, regions=tuple(regions), decisions=tuple(decisions))
