"""LLVM IR as text, written line by line: names, blocks, intrinsics, and the types of operands.

IR objects (llvmlite.ir) cost 50 times more time an instruction than strings. An operand is its text:
`%v12` or a literal. `lanes` 0 means a scalar, n > 0 a vector of n elements.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache

from onepass.core.dtypes import BOOL, U8, DType
from onepass.loops.ir import Scalar
from onepass.targets.llvm.description import TargetDescription

Lines = list["str | Lines"]
_FLOATS = {16: "half", 32: "float", 64: "double"}
_PACK = {16: ">e", 32: ">f", 64: ">d"}


def scalar_type(dtype: DType) -> str:
    """Type of a value in a register: a bool is `i1`."""
    if dtype.is_float:
        return _FLOATS[dtype.bits]
    return "i1" if dtype.kind == "bool" else f"i{dtype.bits}"


def suffix(dtype: DType, lanes: int) -> str:
    """How an overloaded intrinsic's name ends for this type: `f32`, `v16f32`; `lanes` 0 is a scalar."""
    bits = 1 if dtype.kind == "bool" else dtype.bits
    name = f"{'f' if dtype.is_float else 'i'}{bits}"
    return f"v{lanes}{name}" if lanes else name


def literal(value: Scalar, dtype: DType) -> str:
    """A scalar literal; floats in hexadecimal so that every bit is kept, integers wrapped to `dtype`."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if not dtype.is_float:
        wrapped = int(value) & ((1 << dtype.bits) - 1)
        return str(wrapped - (1 << dtype.bits) if wrapped >> (dtype.bits - 1) else wrapped)
    try:
        stored = struct.pack(_PACK[dtype.bits], value)
    except OverflowError:
        stored = struct.pack(_PACK[dtype.bits], math.copysign(math.inf, value))
    if dtype.bits == 16:
        return "0xH" + stored.hex().upper()
    return "0x" + struct.pack(">d", struct.unpack(_PACK[dtype.bits], stored)[0]).hex().upper()


@lru_cache(maxsize=4096)
def type_of(dtype: DType, lanes: int) -> str:
    """LLVM type of a value."""
    scalar = scalar_type(dtype)
    return f"<{lanes} x {scalar}>" if lanes else scalar


@lru_cache(maxsize=4096)
def stored_type(dtype: DType, lanes: int) -> str:
    """LLVM type of the same value in memory, where a bool is one byte."""
    return type_of(U8 if dtype.kind == "bool" else dtype, lanes)


def constant(value: Scalar, dtype: DType, lanes: int = 0) -> str:
    """A literal operand, the same in all lanes."""
    text = literal(value, dtype)
    return f"splat ({scalar_type(dtype)} {text})" if lanes else text


def flatten(lines: Lines) -> list[str]:
    """The lines of a nested list in order."""
    out: list[str] = []
    for line in lines:
        if isinstance(line, str):
            out.append(line)
        else:
            out.extend(flatten(line))
    return out


class Writer:
    """The function being written. Subclasses add addresses, arithmetic, expressions and statements."""

    def __init__(self, target: TargetDescription) -> None:
        self.target = target
        self.lines: Lines = []
        self.block = "entry"
        self.declarations: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.known: dict[str, str] = {}  # pure instructions whose result can be used here
        self._count = 0

    def name(self) -> str:
        """A fresh SSA name."""
        self._count += 1
        return f"%v{self._count}"

    def op(self, text: str) -> str:
        """Writes the pure instruction `name = text`, or finds it, and gives the name."""
        name = self.known.get(text)
        if name is None:
            name = self.known[text] = self.fresh(text)
        return name

    def fresh(self, text: str) -> str:
        """Writes `name = text` and gives the name."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Writes an instruction without a result."""
        self.lines.append("  " + text)

    def label(self) -> str:
        """A fresh block label."""
        self._count += 1
        return f"b{self._count}"

    def start(self, label: str) -> None:
        """Begins block `label`."""
        self.lines.append(f"{label}:")
        self.block = label

    def call(self, result: str, function: str, types: str, arguments: str) -> str:
        """Calls an external function or intrinsic without side effects and gives its result."""
        if function not in self.declarations:
            self.declarations[function] = f"declare {result} @{function}({types})"
        return self.op(f"call {result} @{function}({arguments})")

    def intrinsic(self, name: str, dtype: DType, lanes: int, *operands: str) -> str:
        """`llvm.NAME` on operands that all have the type of the result."""
        kind = type_of(dtype, lanes)
        types = ", ".join([kind] * len(operands))
        arguments = ", ".join(f"{kind} {operand}" for operand in operands)
        return self.call(kind, f"llvm.{name}.{suffix(dtype, lanes)}", types, arguments)

    def select(self, condition: str, yes: str, no: str, dtype: DType, lanes: int) -> str:
        """Element by element `yes if condition else no`."""
        kind = type_of(dtype, lanes)
        return self.op(f"select {type_of(BOOL, lanes)} {condition}, {kind} {yes}, {kind} {no}")

    def splat(self, operand: str, dtype: DType, lanes: int) -> str:
        """A scalar in every lane."""
        if operand[0] != "%":
            return operand if operand == "poison" else f"splat ({scalar_type(dtype)} {operand})"
        kind = type_of(dtype, lanes)
        first = self.op(f"insertelement {kind} poison, {scalar_type(dtype)} {operand}, i64 0")
        return self.op(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def extract(self, operand: str, dtype: DType, lanes: int, lane: int) -> str:
        """One lane of a vector."""
        if operand.startswith("splat ("):
            return operand[len("splat (") : -1].split(" ", 1)[1]
        return self.op(f"extractelement {type_of(dtype, lanes)} {operand}, i64 {lane}")

    def gather(self, operands: list[str], dtype: DType) -> str:
        """A vector made of scalars."""
        lanes, out = len(operands), "poison"
        kind, scalar = type_of(dtype, lanes), scalar_type(dtype)
        for lane, operand in enumerate(operands):
            out = self.op(f"insertelement {kind} {out}, {scalar} {operand}, i64 {lane}")
        return out
