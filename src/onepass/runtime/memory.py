"""Memory for arenas, constants and results: aligned, and in large blocks.

numpy asks the system for huge pages in a block of 4 MiB or more; a model streams through its weights on
every run, so they lie side by side in one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onepass.core.errors import UserError
from onepass.runtime.arena import ALIGNMENT, alignment_of

Array = npt.NDArray[Any]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array as `np.empty` gives it that starts on a cache line, a large one on a page (see arena.py).

    Raises UserError when there is not enough memory.
    """
    return place(allocate(math.prod(shape) * dtype.itemsize), shape, dtype)


def allocate(size: int) -> Array:
    """`size` bytes and room to align them; raises UserError when there is not enough memory."""
    try:
        return np.empty(size + alignment_of(size), np.uint8)
    except (MemoryError, ValueError) as error:
        raise UserError(
            f"not enough memory: the model needs {size:,} bytes in one piece",
            remedy="use a smaller batch or image size",
        ) from error


def place(raw: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The aligned array inside `raw`, which it keeps alive."""
    size = math.prod(shape) * dtype.itemsize
    skip = -raw.ctypes.data % alignment_of(size)
    return raw[skip : skip + size].view(dtype).reshape(shape)


def is_readable(array: Array) -> bool:
    """Whether kernels can read it in place: dense, and on 16 bytes, where the C library puts every array."""
    return array.flags.c_contiguous and array.ctypes.data % 16 == 0


def side_by_side(kinds: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[Array]:
    """An array of each shape and dtype, one after another in one block, each on a cache line."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
    starts = list(itertools.accumulate((-(-size // ALIGNMENT) * ALIGNMENT for size in sizes), initial=0))
    block = aligned_empty((starts[-1],), np.dtype(np.uint8))
    return [
        block[start : start + size].view(dtype).reshape(shape)
        for (shape, dtype), start, size in zip(kinds, starts[:-1], sizes, strict=True)
    ]


def gather(constants: Mapping[str, Array]) -> dict[str, Array]:
    """The constants as kernels read them: those made here side by side in one block.

    An array that lies in a mapped file stays there, unless it starts off 16 bytes.
    """
    made = {name: array for name, array in constants.items() if array.base is None or not is_readable(array)}
    copies = side_by_side([(array.shape, array.dtype) for array in made.values()])
    for copy, array in zip(copies, made.values(), strict=True):
        np.copyto(copy, array)
    return {**constants, **dict(zip(made, copies, strict=True))}
