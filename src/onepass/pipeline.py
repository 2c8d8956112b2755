"""The path of a model, top to bottom: graph -> plan -> kernels -> machine code -> program.

In: a graph with static shapes, the settings and the machine. Out: a `Compiled`: the plan with its ledger
beside a program that runs. Every step of the compiler is called from this page.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import ChainMap, Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from onepass.core.dtypes import BF16
from onepass.core.errors import ModelError, ShapeError
from onepass.core.settings import FLUSH, Settings
from onepass.cost.machine import Machine
from onepass.forms.nest import Built
from onepass.forms.packing import Packed
from onepass.forms.regions import Choices, Context, Shaped, build_region
from onepass.forms.traffic import passes_caches, value_bytes
from onepass.fuse.layouts import assign_layouts
from onepass.fuse.plan import Plan
from onepass.fuse.planner import FuseMode, make_plan
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN
from onepass.graph.passes import (
    drop_dead_nodes,
    fold_constants,
    simplify_concats,
    simplify_views,
    split_to_slices,
)
from onepass.graph.verify import verify as verify_graph
from onepass.loops.ir import Kernel, Store
from onepass.loops.printer import print_kernel
from onepass.loops.verify import verify as verify_kernel
from onepass.loops.walk import loads, scratch_of, statements
from onepass.ops.opdef import Array
from onepass.runtime.arena import Lifetime, plan_arena
from onepass.runtime.host import memory_bytes
from onepass.runtime.memory import side_by_side
from onepass.runtime.program import Launch, Program, Slot
from onepass.targets.cache import CacheEvent, CodeCache, cache_key
from onepass.targets.llvm.compile import link
from onepass.targets.llvm.description import TargetDescription
from onepass.targets.llvm.emit import emit
from onepass.targets.llvm.parallel import compile_many

GRAPH_PASSES = (split_to_slices, simplify_views, simplify_concats, fold_constants, drop_dead_nodes)


@dataclass(frozen=True, slots=True)
class Compiled:
    """One model for one set of shapes: what was decided, and the code that does it.

    `objects` is the object code by cache key, and what was measured to choose it; for `hits` kernels it was
    there already. `kept` are the arena offsets of the values that stay there after a run.
    """

    plan: Plan
    program: Program
    kernels: Mapping[str, Kernel]
    objects: Mapping[str, bytes]
    hits: int
    events: tuple[CacheEvent, ...]
    compile_s: float
    kept: Mapping[str, int]

    @property
    def misses(self) -> int:
        """Kernels whose object code had to be compiled."""
        return len(self.kernels) - self.hits

    def cache_notes(self, outcomes: Collection[str] = ("miss", "corrupt", "unwritable")) -> tuple[str, ...]:
        """What the code cache has to say about events of these `outcomes`, each reason once."""
        counts = Counter(event.reason for event in self.events if event.outcome in outcomes)
        return tuple(f"{why} ({count} kernels)" if count > 1 else why for why, count in counts.items())


Wanted = dict[str, tuple[Packed | None, Array]]
"""Constants that kernels read, by label, with how they are to be packed."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A region's kernel under its final name, and its call."""

    launch: Launch
    kernel: Kernel
    scratch_bytes: int


def compile_graph(
    graph: Graph,
    settings: Settings,
    machine: Machine,
    target: TargetDescription,
    workers: int,
    known: Mapping[str, bytes] | None = None,
    keep: bool = False,
    choices: Choices | None = None,
) -> Compiled:
    """Compiles `graph` as `settings` ask; raises `UserError` for what the user can mend.

    `known` holds object code by cache key, used before the cache is asked. With `keep` no value is
    overwritten during a run, so that `Compiled.kept` values can be read after it. `choices`: see `Context`.
    """
    started = time.perf_counter()
    _refuse_bfloat16(graph)
    graph = simplified(graph)
    mode = FuseMode.parse(settings.fuse)
    rewrites = mode.allowed(settings.rewrites)
    graph, layouts = assign_layouts(graph, target.vector_bits // 32, rewrites)
    context = Context(graph, layouts, machine, workers, rewrites, choices)
    planned = make_plan(context, mode)
    graph = planned.plan.graph  # with copies of the producers that are cheaper to compute again
    context = replace(context, graph=graph, layouts=planned.plan.layouts)
    wanted: Wanted = {}
    placed = [
        _place(context, number, shaped, wanted)
        for number, shaped in enumerate(planned.shaped)
        if shaped is not None and graph.types[shaped.outputs[0]].size > 0
    ]
    kernels = {item.kernel.name: item.kernel for item in placed}
    launches = [item.launch for item in placed]
    scratch = {item.launch.args[-1]: item.scratch_bytes for item in placed if item.scratch_bytes}
    slots, arena_bytes = allocate(planned.plan, launches, wanted, scratch, keep)
    _refuse_too_large(graph, arena_bytes)
    objects, hits, events = _machine_code(kernels, target, settings, known or {})
    program = Program(
        link(objects),
        launches,
        slots,
        laid_out(wanted),
        [(name, graph.types[name]) for name in graph.inputs],
        [(name, graph.types[name]) for name in graph.outputs],
        arena_bytes,
        workers,
        FLUSH in rewrites,
    )
    plan = replace(planned.plan, arena_bytes=arena_bytes)
    by_key = {cache_key(name, target): data for name, data in objects.items()}
    kept = {name: slot[1] for name, slot in slots.items() if keep and slot[0] == "arena"}
    return Compiled(plan, program, kernels, by_key, hits, events, time.perf_counter() - started, kept)


def simplified(graph: Graph) -> Graph:
    """`graph` after the passes that no target is without; ONEPASS_CHECK=1 verifies it after each."""
    for step in GRAPH_PASSES:
        graph = step(graph)
        if _checks():
            verify_graph(graph, step.__name__)
    return graph


def _refuse_bfloat16(graph: Graph) -> None:
    """Raises `ModelError` for a value that the CPU target has no arithmetic for."""
    found = [name for name, tensor in graph.types.items() if tensor.dtype == BF16]
    if found:
        producer = graph.producers().get(found[0])
        raise ModelError(
            f"'{found[0]}' is {graph.types[found[0]]}, which is not computed on a CPU",
            where=f"node '{producer.user_name}' ({producer.spelling})" if producer else
            f"{'input' if found[0] in graph.inputs else 'constant'} '{found[0]}'",
            why=f"{len(found)} of the model's {len(graph.types)} values are bfloat16",
            remedy="export the model in float32, or in float16",
        )  # fmt: skip


def _refuse_too_large(graph: Graph, arena_bytes: int) -> None:
    """Raises `ShapeError` for a model that this machine's memory cannot hold, before it is asked for."""
    ends = {*graph.inputs, *graph.outputs}
    needed = arena_bytes + sum(graph.types[name].size_bytes for name in ends)
    if needed > memory_bytes():
        raise ShapeError(
            f"the model needs {needed:,} bytes for its values, this machine has {memory_bytes():,}",
            where=", ".join(f"input '{name}' {graph.types[name]}" for name in graph.inputs),
            why="nothing was allocated",
            remedy="use a smaller batch or smaller images",
        )


def _place(context: Context, number: int, shaped: Shaped, wanted: Wanted) -> _Placed:
    """Builds a region's kernel and notes the constants that it reads."""
    built: Built = _streamed(context, build_region(context, shaped))
    if _checks():
        verify_kernel(built.kernel)
    text = print_kernel(built.kernel)
    name = "k" + hashlib.sha256(text.encode()).hexdigest()[:24]
    made = ChainMap(dict(built.made), shaped.body.constants, dict(context.graph.constants))
    args = labelled(built.args, built.packed, made, wanted)
    scratch_bytes = scratch_of(built.kernel).size_bytes * context.workers
    if scratch_bytes:
        args = (*args, f"scratch:{number}")
    return _Placed(Launch(number, name, args), replace(built.kernel, name=name), scratch_bytes)


def labelled(
    args: Sequence[str], packed: Mapping[str, Packed], made: Mapping[str, Array], wanted: Wanted
) -> tuple[str, ...]:
    """The buffers behind a kernel's `args`; those of the constants `made` are noted in `wanted`."""
    labels = []
    for arg in args:
        if arg in packed:
            label = _packed_label(packed[arg])
            wanted[label] = (packed[arg], made[packed[arg].source])
        elif arg in made:
            label = f"constant:{arg}"
            wanted[label] = (None, made[arg])
        else:
            label = arg
        labels.append(label)
    return tuple(labels)


def _streamed(context: Context, built: Built) -> Built:
    """The kernel with its large outputs marked that are better written past the caches.

    A part of another value may start anywhere, off the lines of a cache.
    """
    large = {
        buffer.name for buffer, arg in zip(built.kernel.params, built.args, strict=True)
        if context.layouts.get(arg, PLAIN).place is None
        and passes_caches(buffer.size_bytes, context.machine, context.workers)
    }  # fmt: skip
    if not large:
        return built
    stores = [stmt for stmt in statements(built.kernel.body) if isinstance(stmt, Store)]
    streamed = large & {store.buffer for store in stores}
    streamed -= {load.buffer for store in stores for load in loads(store.value)}
    params = tuple(replace(buffer, streamed=buffer.name in streamed) for buffer in built.kernel.params)
    return replace(built, kernel=replace(built.kernel, params=params))


def _checks() -> bool:
    """Whether ONEPASS_CHECK asks for every graph pass and every kernel to be verified."""
    return os.environ.get("ONEPASS_CHECK", "0") != "0"


def laid_out(wanted: Wanted) -> dict[str, Array]:
    """The constants in the order in which kernels read them, packed ones side by side in one block."""
    found = {label: source for label, (packed, source) in wanted.items() if packed is None}
    packs = {label: (packed, source) for label, (packed, source) in wanted.items() if packed is not None}
    places = side_by_side([(packed.shape, source.dtype) for packed, source in packs.values()])

    def write(place: Array, packed: Packed, source: Array) -> None:
        np.copyto(place, packed.unpacked(source))

    with ThreadPoolExecutor(max_workers=2) as pool:  # copying is bound by memory: two already fill it
        list(pool.map(write, places, *zip(*packs.values(), strict=True)) if packs else ())
    return {**found, **dict(zip(packs, places, strict=True))}


def _packed_label(packed: Packed) -> str:
    return f"packed:{packed.source}:{hashlib.sha256(repr(packed).encode()).hexdigest()[:16]}"


def _machine_code(
    kernels: Mapping[str, Kernel], target: TargetDescription, settings: Settings, known: Mapping[str, bytes]
) -> tuple[dict[str, bytes], int, tuple[CacheEvent, ...]]:
    """Object code of every kernel, for how many of them it was there already, and the cache's events."""
    cache = CodeCache.default() if settings.cache else CodeCache(None)
    objects: dict[str, bytes] = {}
    for name in kernels:
        found = known.get(cache_key(name, target)) or cache.get(name, target)
        if found is not None:
            objects[name] = found
    hits = len(objects)
    missing = [kernel for name, kernel in kernels.items() if name not in objects]
    for kernel, code in zip(missing, compile_many([emit(k, target) for k in missing], target), strict=True):
        objects[kernel.name] = code
        cache.put(kernel.name, target, code)
    return objects, hits, tuple(cache.events)


def allocate(
    plan: Plan, launches: Sequence[Launch], constants: Collection[str], scratch: Mapping[str, int], keep: bool
) -> tuple[dict[str, Slot], int]:
    """Where every buffer lies: a view where its source does, a part in its whole; and the arena's bytes.

    `scratch` holds bytes by buffer. With `keep` no value is overwritten during a run.
    """
    graph = plan.graph
    slots: dict[str, Slot] = {name: ("constant", name) for name in constants}
    slots |= {name: ("input", at) for at, name in enumerate(graph.inputs)}
    slots |= {name: ("output", at) for at, name in enumerate(graph.outputs)}
    views = [region.nodes[0] for region in plan.regions if region.form == "view"]
    renamed = {node.outputs[0]: node.inputs[0] for node in views if node.opdef.view}

    def buffer(name: str) -> tuple[str, int]:
        """The buffer that holds `name`, and from which byte on."""
        kind, layout = graph.types[name], plan.layouts.get(name, PLAIN)
        if name in renamed or layout.place is not None:
            whole, start = buffer(layout.place.whole if layout.place else renamed[name])
            return whole, start + layout.offset(kind.shape) * kind.dtype.size_bytes
        return name, 0

    found = {name: buffer(name) for launch in launches for name in launch.args if name in graph.types}
    found |= {name: (name, 0) for name in scratch}
    lives: dict[str, Lifetime] = {}
    for at, launch in enumerate(launches):
        for name in (found[arg][0] for arg in launch.args if arg in found):
            first = lives[name].first if name in lives else at
            size = scratch.get(name) or value_bytes(graph, plan.layouts, name)
            lives[name] = Lifetime(name, size, first, len(launches) if keep else at)
    arena = plan_arena([life for name, life in lives.items() if name not in slots])
    slots |= {name: ("arena", offset) for name, offset in arena.offsets.items()}
    for name, (whole, start) in found.items():
        slot = slots[whole]
        if slot[0] == "arena":
            slots[name] = ("arena", slot[1] + start)
        elif slot[0] != "constant" and name != whole:
            slots[name] = (slot[0], slot[1], start)
    return slots, arena.size_bytes
