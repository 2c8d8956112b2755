"""A kernel of tiles: the source of one Triton kernel, with all that a launch of it needs.

GPU kernels do not go through `Kernel`: a GPU compiler makes loops, lanes and accumulators itself
(docs/design/0002). They share what comes before, the stages and index maps, and are printed from those.
"""

from __future__ import annotations

from dataclasses import dataclass

from onepass.loops.ir import Buffer


@dataclass(frozen=True, slots=True)
class TileKernel:
    """One launch: `grid` programs, each `warps` warps wide, run the function `name` of the module `source`.

    `source` is a whole Python module. The function takes one pointer for each of `params`, in order, dense
    and aligned to 16 bytes; all sizes are literals in it. `stages` is the depth of software pipelining of
    loads; `max_registers` a limit a thread, None for the compiler's own.
    """

    name: str
    source: str
    params: tuple[Buffer, ...]
    grid: tuple[int, int, int]
    warps: int = 4
    stages: int = 3
    max_registers: int | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """How a region is cut: a program computes `rows` x `columns` outputs, sums in steps of `depth`.

    What rows and columns are is the form's business; `depth` 0: the whole row at once. `middle`: of two
    products in a kernel, columns of what passes between them that are made at a time.
    """

    rows: int = 1
    columns: int = 1
    depth: int = 0
    warps: int = 4
    stages: int = 3
    max_registers: int | None = None
    middle: int = 0

    def __str__(self) -> str:
        depth = f", {self.depth} deep" if self.depth else ""
        depth += f", over {self.middle} between" if self.middle else ""
        limit = f", at most {self.max_registers} registers" if self.max_registers else ""
        return f"{self.rows} x {self.columns}{depth}, {self.warps} warps{limit}"
