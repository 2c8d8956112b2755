"""What all kernels of tiles share: the resolver of a region, its printer, and the module around the lines."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from onepass.core.dtypes import BOOL, I8, DType
from onepass.forms.body import Body
from onepass.forms.nest import initial_value
from onepass.forms.packing import Packed
from onepass.forms.resolve import Indices, Resolver
from onepass.graph.ir import Graph
from onepass.graph.layout import PLAIN, Layout
from onepass.loops.build import floordiv, mod
from onepass.loops.ir import Buffer, Expr
from onepass.loops.tile import Tile, TileKernel
from onepass.ops.opdef import Combine, Compute
from onepass.tiles.printer import Printer, accumulator_type, identifier

FUNCTIONS = Path(__file__).with_name("device_functions.py")


@dataclass(frozen=True, slots=True)
class TileBuilt:
    """A kernel, the value or packed constant behind each parameter, and how to pack those.

    `live_words`: 32-bit words of a program's tiles that are needed at once, an estimate of its registers.
    `bytes_in_flight`: what a program's loads move at a time, where none waits for another.
    """

    kernel: TileKernel
    args: tuple[str, ...]
    packed: Mapping[str, Packed]
    live_words: int
    bytes_in_flight: int


class Builder:
    """One kernel under construction."""

    def __init__(self, body: Body, graph: Graph, layouts: Mapping[str, Layout], tile: Tile) -> None:
        self.body, self.graph, self.layouts, self.tile = body, graph, layouts, tile
        self.resolver = Resolver(body, graph, layouts)
        self.printer = Printer(self.resolver)

    def decoded(self, position: Expr, extents: Sequence[int]) -> tuple[Expr, ...]:
        """`position` in a row-major space of `extents` as one index for each."""
        found: list[Expr] = []
        inner = math.prod(extents)
        for extent in extents:
            inner //= max(1, extent)
            place = floordiv(position, max(1, inner))
            found.append(self.resolver.simplify(mod(place, extent) if extent > 0 else place))
        return tuple(found)

    def in_memory_order(self, value: str, axes: Iterable[int]) -> list[int]:
        """`axes` of `value`, outermost in memory first: channels last where they lie so."""
        blocked = self.layouts.get(value, PLAIN).block > 1
        return sorted(axes, key=lambda axis: (blocked and axis == 1, axis))

    def write(self, point: Indices) -> None:
        """Stores every output of the region at `point`."""
        for store in self.resolver.outputs(point):
            buffer = next(b for b in self.resolver.params.values() if b.name == store.buffer)
            self.printer.store(buffer, store.indices, store.value)

    def start(self, name: str, combine: Combine, dtype: DType, shape: str) -> None:
        """A running total at its neutral element."""
        neutral = self.printer.value(initial_value(combine, dtype)).text
        self.printer.hold(name, frozenset(range(len(self.printer.shape))), dtype)
        self.printer.line(f"{name} = tl.full({shape}, {neutral}, {accumulator_type(dtype)})")

    def combined(self, combine: Combine, a: str, b: str, dtype: DType) -> str:
        """`a` and `b` combined, elementwise."""
        if combine in ("add", "mul"):
            return f"{a} {'+' if combine == 'add' else '*'} {b}"
        if not dtype.is_float:
            return f"tl.{'maximum' if combine == 'max' else 'minimum'}({a}, {b})"
        name = "larger" if combine == "max" else "smaller"
        self.printer.functions.add(name)
        return f"{name}({a}, {b})"

    def masked(self, stage: Compute, term: Expr) -> str:
        """A term of a sum along the columns of a tile, neutral where these do not exist."""
        printer = self.printer
        assert stage.combine is not None
        wide = str(printer.shape)
        value, mask = printer.value(term), printer.masks.get(1)
        if mask is None:
            return value.text if 1 in value.dims else f"tl.broadcast_to({value.text}, {wide})"
        neutral = printer.value(initial_value(stage.combine, stage.dtype)).text
        found = f"tl.where({mask.text}, {value.text}, {neutral})"
        return found if 0 in value.dims or printer.shape[0] == 1 else f"tl.broadcast_to({found}, {wide})"

    def reduced(self, stage: Compute, tile: str) -> str:
        """`tile` combined along its columns, as a column."""
        combine, dtype = stage.combine, stage.dtype
        if combine == "add":
            return f"tl.sum({tile}, 1)[:, None]"
        if combine == "mul" or dtype.is_float:
            name = {"mul": "product", "max": "larger", "min": "smaller"}[str(combine)]
            self.printer.functions.add(name)
            return f"tl.reduce({tile}, 1, {name})[:, None]"
        return f"tl.{combine}({tile}, 1)[:, None]"

    def finish(self, title: str, grid: tuple[int, int, int]) -> TileBuilt:
        """The module: a docstring that names what is computed and what lies behind each parameter."""
        params = tuple(self.resolver.params.values())
        names = {buffer.name: label for label, buffer in self.resolver.params.items()}
        stored = tuple(
            Buffer(b.name, I8 if b.dtype == BOOL else b.dtype, b.shape, b.home) for b in params
        )
        about = "\n".join(f"    {b.name}: {names[b.name]} {b.dtype}{list(b.shape)}" for b in params)
        body = "\n".join(self.printer.lines)
        name = identifier(self.body.outputs[0])
        quoted = f"{title}\n\n{about}".replace("\\", "\\\\").replace('"""', "'''")
        source = (
            f"import triton\nimport triton.language as tl\n\n\n{functions(self.printer.functions)}"
            f"@triton.jit\ndef {name}({', '.join(b.name for b in params)}):\n"
            f'    """{quoted}\n    """\n{body}\n'
        )
        kernel = TileKernel(
            name, source, stored, grid, self.tile.warps, self.tile.stages, self.tile.max_registers
        )
        args = tuple(names[buffer.name] for buffer in params)
        printer = self.printer
        return TileBuilt(
            kernel, args, dict(self.resolver.packed), printer.live_words(), printer.bytes_in_flight
        )


@lru_cache(maxsize=1)
def _device_functions() -> dict[str, tuple[str, frozenset[str]]]:
    """Of each device function its text, and the names that it calls."""
    text = FUNCTIONS.read_text()
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            own = "\n".join(lines[node.lineno - 2 : node.end_lineno])
            found[node.name] = (own, _called(node))
    return found


def _called(node: ast.FunctionDef) -> frozenset[str]:
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return frozenset(each.id for each in calls if isinstance(each, ast.Name))


def functions(names: Iterable[str]) -> str:
    """The text of the device functions `names` and of those that they call, in the order of their file."""
    known, needed, pending = _device_functions(), set[str](), list(names)
    while pending:
        name = pending.pop()
        if name in known and name not in needed:
            needed.add(name)
            pending += known[name][1]
    return "".join(f"{known[name][0]}\n\n\n" for name in known if name in needed)


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << max(0, size - 1).bit_length()
