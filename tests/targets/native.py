"""Runs one kernel natively and under the interpreter, and compares."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from loop_interpreter import interpret
from numpy.typing import NDArray

from onepass.loops.ir import Kernel
from onepass.loops.verify import verify
from onepass.loops.walk import scratch_of
from onepass.targets.llvm.compile import compile_ir, link
from onepass.targets.llvm.description import TargetDescription, describe_host
from onepass.targets.llvm.emit import emit, symbol_of
from onepass.targets.llvm.statements import SHARED_LOOPS

Array = NDArray[np.generic]


def aligned(array: Array) -> Array:
    """A copy that starts at a multiple of 64 bytes."""
    store = np.zeros(array.nbytes + 64, np.uint8)
    start = -store.ctypes.data % 64
    out = store[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def run_native(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    workers: int = 1,
    target: TargetDescription | None = None,
    come: int | None = None,
) -> dict[str, Array]:
    """The arrays after the kernel, run by `workers` one after another, or by the first `come` of them."""
    verify(kernel)
    target = target or describe_host()
    symbol = symbol_of(kernel)
    code = link({symbol: compile_ir(emit(kernel, target), target)})
    out = {name: aligned(array) for name, array in arrays.items()}
    scratch = aligned(np.zeros(workers * scratch_of(kernel).size_bytes, np.uint8))
    addresses = [*(out[buffer.name].ctypes.data for buffer in kernel.params), scratch.ctypes.data]
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    taken = np.zeros((workers, SHARED_LOOPS), np.int64)
    kinds = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
    function = ctypes.CFUNCTYPE(None, *kinds)(code.address(symbol))
    for worker in range(come or workers):
        function(pointers, worker, workers, taken.ctypes.data)
    return out


def run_interpreted(kernel: Kernel, arrays: Mapping[str, Array], workers: int = 1) -> dict[str, Array]:
    """The arrays after the interpreter's run."""
    out = {name: array.copy() for name, array in arrays.items()}
    interpret(kernel, out, workers)
    return out


def ulps(actual: Array, expected: Array) -> Array:
    """Distance in units in the last place; 0 where both are NaN."""
    kind = {2: np.int16, 4: np.int32, 8: np.int64}[actual.dtype.itemsize]

    def ordered(x: Array) -> Array:
        bits = x.view(kind).astype(np.int64)
        return np.where(bits < 0, np.int64(np.iinfo(kind).min) - bits, bits)

    distance = np.abs(ordered(actual) - ordered(expected))
    both_nan = np.isnan(actual) & np.isnan(expected)
    one_nan = np.isnan(actual) ^ np.isnan(expected)
    return np.where(both_nan, 0, np.where(one_nan, np.iinfo(np.int64).max, distance))


def same(actual: Array, expected: Array) -> bool:
    """Equal bit for bit, but for the payload of NaN and the sign of zero."""
    return bool(np.array_equal(actual, expected, equal_nan=actual.dtype.kind == "f"))
