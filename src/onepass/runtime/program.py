"""A program: linked kernels in order, their buffers, and one call that runs them on all workers.

In: arrays in the order of the model's inputs. Out: fresh arrays in the order of its outputs. Buffers
live in one arena; a table of pointers is all that changes from call to call.

Kernels run in the same floating-point mode on every worker, whatever the caller's: subnormal numbers are
computed as IEEE 754 says, or, where the program was made to, flushed to zero.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from onepass.core.errors import ShapeError
from onepass.core.tensor import TensorType
from onepass.runtime.memory import aligned_empty, allocate, gather, is_readable, place
from onepass.runtime.trace import LaunchTime, Trace
from onepass.runtime.workers import pool_of

Array = npt.NDArray[Any]
End = Literal["input", "output"]
Slot = tuple[Literal["arena"] | End, int] | tuple[End, int, int] | tuple[Literal["constant"], str]
"""Where a buffer lies: an offset in the arena, a constant's name, or the number of an input or output, with
the byte from which on where it is a part of that."""


_KEPT_FROM = 1 << 20
"""Results of this many bytes are worth keeping; smaller ones come from the C library's own store."""
_UNSHARED = 2
"""References to an array that only its list holds: the list's, and that of the question itself."""


class Linked(Protocol):
    """Machine code in memory."""

    def address(self, symbol: str) -> int:
        """Where the function `symbol` starts."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel call of region `region`; `args` are buffer names in the order of its parameters."""

    region: int
    symbol: str
    args: tuple[str, ...]


class Program:
    """Runs a compiled model; safe to call from several threads, which then take turns."""

    def __init__(
        self,
        code: Linked,
        launches: Sequence[Launch],
        slots: Mapping[str, Slot],
        constants: Mapping[str, Array],
        inputs: Sequence[tuple[str, TensorType]],
        outputs: Sequence[tuple[str, TensorType]],
        arena_bytes: int,
        workers: int,
        flush: bool = False,
    ) -> None:
        """Allocates the arena and fills the table of pointers. `arena_bytes` as `plan_arena` gave it.

        With `flush` numbers smaller than the smallest normal one are zero, as operands and as results.
        """
        self.launches, self.workers, self.slots = tuple(launches), workers, slots
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.arena_bytes, self.flush = arena_bytes, flush
        self._code = code
        self._arena = aligned_empty((arena_bytes,), np.dtype(np.uint8))
        self._arena.fill(0)
        self.constants: Mapping[str, Array] = gather(constants)
        self._table = np.zeros(max(1, sum(len(launch.args) for launch in self.launches)), np.uint64)
        self._calls = np.zeros((max(1, len(self.launches)), 2), np.uint64)
        self._numpy_in = [kind.dtype.numpy for _, kind in self.inputs]
        self._numpy_out = [kind.dtype.numpy for _, kind in self.outputs]
        self._staged: dict[int, Array] = {}
        self._kept: list[list[Array]] = [[] for _ in self.outputs]
        self._patches = self._fill_tables()

    def _fill_tables(self) -> list[npt.NDArray[np.intp]]:
        """Writes what never changes; returns the entries of each input, then output, and their starts."""
        patches: list[list[tuple[int, int]]] = [[] for _ in (*self.inputs, *self.outputs)]
        at = 0
        for row, launch in zip(self._calls, self.launches, strict=False):
            row[:] = self._code.address(launch.symbol), self._table.ctypes.data + 8 * at
            for name in launch.args:
                slot = self.slots[name]
                if slot[0] == "arena":
                    self._table[at] = self._arena.ctypes.data + slot[1]
                elif slot[0] == "constant":
                    self._table[at] = self.constants[slot[1]].ctypes.data
                else:
                    number = slot[1] + (len(self.inputs) if slot[0] == "output" else 0)
                    patches[number].append((at, slot[2] if len(slot) == 3 else 0))
                at += 1
        return [np.array(entries, np.intp).reshape(-1, 2).T for entries in patches]

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The model's outputs for its inputs, in order.

        Raises ShapeError, in the model's input names, when the count, a shape or a dtype is wrong.
        """
        return self._run(self._checked(arrays), None)

    def run_timed(self, arrays: Sequence[Array]) -> float:
        """Seconds of one `run`, checks and allocation of the outputs included."""
        start = time.perf_counter()
        self.run(arrays)
        return time.perf_counter() - start

    def trace(self, arrays: Sequence[Array], runs: int = 20) -> Trace:
        """Times of each launch with its barrier, and of whole calls, over `runs` runs after a warm-up."""
        ready = self._checked(arrays)
        stamps = np.zeros((len(self.launches) + 1, 2), np.int64)
        seconds = np.zeros((runs, len(self.launches)))
        whole = np.zeros(runs)
        self._run(ready, None)
        for run in range(runs):
            start = time.perf_counter()
            self._run(ready, stamps)
            whole[run] = time.perf_counter() - start
            seconds[run] = np.diff(stamps[:, 0]) + np.diff(stamps[:, 1]) * 1e-9
        each = tuple(
            LaunchTime(launch.region, launch.symbol, float(column.min()), float(np.median(column)))
            for launch, column in zip(self.launches, seconds.T, strict=True)
        )
        return Trace(each, float(whole.min()), statistics.median(whole.tolist()), runs, self.workers)

    def peek(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy of what lies in the arena at `offset` after the last run."""
        size = math.prod(shape) * dtype.itemsize
        return self._arena[offset : offset + size].view(dtype).reshape(shape).copy()

    def _run(self, ready: Sequence[Array], stamps: npt.NDArray[np.int64] | None) -> tuple[Array, ...]:
        pool = pool_of(self.workers)
        with pool.lock:
            results = tuple(self._output(i) for i in range(len(self.outputs)))
            readable = [self._staged_input(i, array) for i, array in enumerate(ready)]
            for array, (entries, starts) in zip((*readable, *results), self._patches, strict=True):
                self._table[entries] = array.ctypes.data + starts
            times = 0 if stamps is None else stamps.ctypes.data
            pool.run(self._calls.ctypes.data, len(self.launches), times, self.flush)
        return results

    def _output(self, i: int) -> Array:
        """Memory for output `i` that nobody else can see: new, or of an earlier result that is gone.

        New memory of many megabytes costs as much time as writing it twice, since the system clears it
        page by page; so the last two results of an output are used again once the caller drops them.
        """
        (_, kind), dtype, kept = self.outputs[i], self._numpy_out[i], self._kept[i]
        for at in range(len(kept)):
            if sys.getrefcount(kept[at]) == _UNSHARED:
                return place(kept[at], kind.shape, dtype)
        raw = allocate(kind.size_bytes)
        if kind.size_bytes >= _KEPT_FROM:
            kept.append(raw)
            del kept[:-2]
        return place(raw, kind.shape, dtype)

    def _staged_input(self, i: int, array: Array) -> Array:
        """Input `i` as kernels read it: itself, or copied to memory that is kept, so its pages are warm."""
        if is_readable(array):
            return array
        if i not in self._staged:
            self._staged[i] = aligned_empty(array.shape, array.dtype)
        np.copyto(self._staged[i], array)
        return self._staged[i]

    def _checked(self, arrays: Sequence[Array]) -> list[Array]:
        """The inputs as arrays of the declared types; raises ShapeError."""
        check_count(self.inputs, len(arrays))
        ready = []
        for (name, kind), dtype, given in zip(self.inputs, self._numpy_in, arrays, strict=True):
            array = np.asarray(given)
            if array.shape != kind.shape or array.dtype != dtype:
                raise mismatch(name, kind, str(array.dtype), array.shape)
            ready.append(array)
        return ready


def check_count(inputs: Sequence[tuple[str, TensorType]], given: int) -> None:
    """Raises ShapeError unless one array is given for each of the model's `inputs`."""
    if given != len(inputs):
        names = ", ".join(name for name, _ in inputs)
        raise ShapeError(
            f"the model takes {len(inputs)} inputs, not {given}",
            remedy=f"give one array for each of: {names}" if names else "call it without inputs",
        )


def mismatch(name: str, kind: TensorType, dtype: str, shape: Sequence[int]) -> ShapeError:
    """The error for an array of `dtype` and `shape`, which are not what the input `name` declares."""
    got = f"{dtype}[{','.join(map(str, shape))}]"
    wrong_dtype = dtype != kind.dtype.name
    return ShapeError(
        f"input '{name}' has the wrong {'element type' if wrong_dtype else 'shape'}",
        where=f"input '{name}'",
        why=f"expected {kind}, got {got}",
        remedy=f"convert it with .astype('{kind.dtype}')" if wrong_dtype
        else "compile the model for this shape (--shape, or the shapes option), or reshape the array",
    )  # fmt: skip
