"""Measures this machine's roofs with generated kernels, so a roof is what generated code can reach.

In: a target and its compiler's three steps. Out: `Roof`s for one worker and for all, and the third level's
bytes as they serve this machine. All kernels of one worker count are launches of one program, timed like any
model's. Per dtype the peak of fused multiply-adds, and for float32 their rate in one chain; per cache level
and for memory the bytes a second of a pointwise kernel that reads one stream and writes another; and the
seconds of an empty launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from onepass.core.dtypes import F32, F64, DType
from onepass.cost.machine import LEVELS, STREAMED, Roof
from onepass.loops.build import add, binary, const, fma, idx, loop, mul
from onepass.loops.ir import Alloc, Buffer, For, Kernel, Load, Stmt, Store
from onepass.runtime.host import MIB, Caches, memory_bytes
from onepass.runtime.program import Launch, Linked, Program, Slot
from onepass.targets.llvm.emit import symbol_of

ROUNDS = 15
"""Each kernel runs twice a round; the least time counts, since other programs can only add to it. Rounds
go through all kernels, so a disturbance of some milliseconds does not hit every run of one kernel."""

_LAUNCHES = 100
_FMA_STEPS = 200_000
_FMA_CHAINS = 24  # that do not wait for each other: more than two ports of four cycles need
# Bytes that one worker moves per launch: about a millisecond each at what such levels usually give, so
# that some run falls between two time slices of other programs.
_MOVED = {"l1": 100 * MIB, "l2": 64 * MIB, "l3": 96 * MIB}
_MEMORY_BYTES, _MEMORY_EVERY = 256 * MIB, 3
"""Both streams together, at least; a launch takes 20 times longer than the others: so every third round."""
_L3_SHARES = (0.75, 0.5, 0.375, 0.25, 0.1875, 0.125)
"""Of the told size: a third level that other machines of the host use as well serves less than that."""
_UNROLL = 8
"""Vectors a step: covers the latency of an add (4 cycles) at two loads a cycle."""
_STAGGER = 2048
"""Distance of the streams modulo 4096; see arena.py for what other distances cost."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One kernel of the probe: what one launch of it does, in the unit of its roof."""

    what: str
    kernel: Kernel
    amount: float
    unit: str
    method: str


def measure_roofs(
    compile_kernels: Callable[[Sequence[Kernel]], Linked],
    vector_bits: int,
    vector_registers: int,
    sizes: Caches,
    counts: Sequence[int],
    date: str,
) -> tuple[tuple[Roof, ...], int]:
    """Runs the probe for each worker count in `counts`, a few seconds each.

    Besides the roofs the bytes of the third level: all that is told of, or the largest share of it whose
    streams, with the most workers, are nearer (by their ratios) to its bandwidth than to that of memory.
    """
    measures = {workers: _measures(vector_bits, vector_registers, sizes, workers) for workers in counts}
    most = max(counts)
    whole = most * _part_bytes("l3", sizes, most)  # what gives the level's bandwidth
    shares = {f"l3 share {part}": int(part * sizes.l3) for part in _L3_SHARES if part * sizes.l3 > whole}
    for name, size in shares.items():
        measures[most].append(_stream_measure(name, size // most, vector_bits, most))
    empty = Kernel("probe_empty", (), ())
    code = compile_kernels([empty, *(m.kernel for some in measures.values() for m in some)])
    roofs: list[Roof] = []
    for workers, some in measures.items():
        seconds, launch_s = _least_seconds(code, some, workers)
        for m, least in zip(some, seconds, strict=True):
            roofs.append(Roof(m.what, m.amount / least, m.unit, workers, m.method, date))
        roofs.append(Roof("launch", launch_s, "s", workers, _LAUNCH_METHOD, date))
    rates = {roof.what: roof.value for roof in roofs if roof.workers == most}
    return tuple(roof for roof in roofs if roof.what not in shares), serving_bytes(rates, shares, sizes.l3)


def serving_bytes(rates: Mapping[str, float], shares: Mapping[str, int], told: int) -> int:
    """Of `shares`, bytes by name, the largest that comes at the rate of the third level; see `measure_roofs`.

    `rates`: bytes a second of each, of `l3` and of `memory`. `told` where the largest does, half the smallest
    where none does.
    """
    if not shares:
        return told
    least = math.sqrt(rates["l3"] * rates["memory"])
    near = [size for name, size in shares.items() if rates[name] >= least]
    found = max(near, default=min(shares.values()) // 2)
    return told if found == max(shares.values()) else found


_LAUNCH_METHOD = f"an empty kernel and a barrier, mean of {_LAUNCHES} in a row less the entry; least of many"


def _least_seconds(code: Linked, some: Sequence[Measure], workers: int) -> tuple[list[float], float]:
    """Least seconds of each kernel, and of one empty launch."""
    groups = [
        [at for at, m in enumerate(some) if m.what.startswith("memory") == slow] for slow in (False, True)
    ]
    programs = [_program(code, [some[at] for at in group], workers) for group in groups]
    empties = [
        Program(code, [Launch(0, "probe_empty", ())] * count, {}, {}, (), (), 0, workers)
        for count in (1, 1 + _LAUNCHES)
    ]
    seconds, entry = [math.inf] * len(some), [math.inf, math.inf]
    for number in range(ROUNDS):
        for group, program, every in zip(groups, programs, (1, _MEMORY_EVERY), strict=True):
            if number % every == 0:
                for at, launch in zip(group, program.trace((), 2).launches, strict=True):
                    seconds[at] = min(seconds[at], launch.min_s)
        for at, program in enumerate(empties):
            entry[at] = min(entry[at], *(program.run_timed(()) for _ in range(5)))
    return seconds, max(entry[1] - entry[0], 1e-9) / _LAUNCHES


def _program(code: Linked, some: Sequence[Measure], workers: int) -> Program:
    """One launch of each kernel; all go over the same two blocks of memory."""
    half = max(math.prod(b.shape) * b.dtype.size_bytes for m in some for b in m.kernel.params)
    half = -(-half // 4096) * 4096
    launches = [Launch(at, symbol_of(m.kernel), ("from", "to")) for at, m in enumerate(some)]
    slots: dict[str, Slot] = {"from": ("arena", 0), "to": ("arena", half + _STAGGER)}
    return Program(code, launches, slots, {}, (), (), 2 * half + _STAGGER, workers)


def _measures(vector_bits: int, registers: int, sizes: Caches, workers: int) -> list[Measure]:
    """The kernels for one worker count."""
    # The widest vectors give the peak; AVX2's, on a machine with AVX-512, what code for older ones can reach.
    widths = [(vector_bits, "")] + ([(256, " 256-bit")] if vector_bits > 256 else [])
    chains = min(_FMA_CHAINS, registers - 4)
    made = [
        _fma_measure(dtype, bits, label, chains, workers) for bits, label in widths for dtype in (F32, F64)
    ]
    made.append(_fma_measure(F32, vector_bits, " chain", 1, workers))
    for what in (*LEVELS, STREAMED):
        made.append(_stream_measure(what, _part_bytes(what, sizes, workers), vector_bits, workers))
    return made


def _part_bytes(level: str, sizes: Caches, workers: int) -> int:
    """Bytes that one worker goes over: in `level`, and too many for the level before."""
    match level:
        case "l1":
            return sizes.l1 // 2
        case "l2":
            return sizes.l2 // 2
        case "l3":
            # Midway, by ratios, between the second levels of all workers and the whole.
            return max(4 * sizes.l2, math.isqrt(workers * sizes.l2 * sizes.l3) // workers)
        case _:
            total = max(_MEMORY_BYTES, 8 * sizes.l3)
            return min(total, 1024 * MIB, memory_bytes() // 8) // workers


def _fma_measure(dtype: DType, vector_bits: int, label: str, chains: int, workers: int) -> Measure:
    """Independent chains of fused multiply-adds on registers: many give the peak, one the latency."""
    lanes = vector_bits // dtype.bits
    x, y, sums = (
        Buffer("x", dtype, (lanes,), "register"),
        Buffer("y", dtype, (lanes,), "register"),
        Buffer("sums", dtype, (chains, lanes), "register"),
    )
    lane, chain = idx("lane"), idx("chain")
    source, target = _memory("source", dtype, 2 * lanes), _memory("target", dtype, workers * chains * lanes)
    old = Load("sums", (chain, lane), dtype)
    turn = Store("sums", (chain, lane), fma(old, Load("x", (lane,), dtype), Load("y", (lane,), dtype)))
    place = add(mul(add(mul(idx("worker"), chains), chain), lanes), lane)
    body = (
        _vector(lanes, Store("x", (lane,), Load("source", (lane,), dtype))),
        _vector(lanes, Store("y", (lane,), Load("source", (add(lane, lanes),), dtype))),
        _unrolled("chain", chains, lanes, Store("sums", (chain, lane), const(0.0, dtype))),
        loop("step", _FMA_STEPS, (_unrolled("chain", chains, lanes, turn),)),
        _unrolled("chain", chains, lanes, Store("target", (place,), old)),
    )
    count = f"{chains} independent chains" if chains > 1 else "one chain"
    name = f"probe_fma_{dtype}_{vector_bits}_{chains}_{workers}"
    kernel = _kernel(name, source, target, workers, (x, y, sums), body)
    return Measure(
        f"{dtype} fma{label}", kernel, 2.0 * chains * lanes * _FMA_STEPS * workers, "flop/s",
        f"generated kernel, {count} of {lanes}-lane fused multiply-adds in registers",
    )  # fmt: skip


def _stream_measure(name: str, size: int, vector_bits: int, workers: int) -> Measure:
    """Passes over two arrays, `size` bytes a worker together: `to[i] = from[i] + 1`.

    `STREAMED` writes past the caches, as kernels do with large outputs: no line is fetched to be written.
    """
    dtype, lanes = F32, vector_bits // F32.bits
    step = _UNROLL * vector_bits // 8
    part = size // (2 * step) * step
    passes = 1 if name.startswith("memory") else max(1, _MOVED[name[:2]] // (2 * part))
    items = part // F32.size_bytes
    source, target = _memory("source", dtype, items * workers), _memory("target", dtype, items * workers)
    target = replace(target, streamed=name == STREAMED)
    vector = add(mul(idx("step"), _UNROLL), idx("chain"))
    place = add(mul(idx("worker"), items), add(mul(vector, lanes), idx("lane")))
    turn = Store("target", (place,), binary("add", Load("source", (place,), dtype), const(1.0, dtype)))
    steps = loop("step", items // (_UNROLL * lanes), (_unrolled("chain", _UNROLL, lanes, turn),))
    symbol = "_".join(("probe", *name.split(), str(workers))).replace(".", "_")
    kernel = _kernel(symbol, source, target, workers, (), (loop("pass", passes, (steps,)),))
    method = (
        f"generated kernel to[i] = from[i] + 1, bytes read and written, {part // 512:,} KiB for each worker"
    ) + ", written past the caches" * target.streamed
    return Measure(name, kernel, float(2 * part * passes * workers), "byte/s", method)


def _kernel(
    name: str, source: Buffer, target: Buffer, workers: int, registers: Sequence[Buffer],
    body: tuple[Stmt, ...],
) -> Kernel:  # fmt: skip
    """`body` once for each `worker`, with its registers."""
    for buffer in registers:
        body = (Alloc(buffer, body),)
    return Kernel(name, (source, target), (loop("worker", workers, body, "parallel"),))


def _unrolled(name: str, count: int, lanes: int, store: Store) -> For:
    return loop(name, count, (_vector(lanes, store),), "unroll")


def _vector(lanes: int, store: Store) -> For:
    return loop("lane", lanes, (store,), "vector")


def _memory(name: str, dtype: DType, items: int) -> Buffer:
    return Buffer(name, dtype, (items,), "memory")
