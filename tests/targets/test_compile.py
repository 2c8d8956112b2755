"""Compilation: what the convolution becomes on each processor, helpers, linking, errors."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest
from direct_conv import Conv, direct_conv

from onepass.core.dtypes import F32
from onepass.core.errors import InternalError, OptionError
from onepass.loops.build import binary, const, idx, loop
from onepass.loops.ir import Buffer, Kernel, Load, Store
from onepass.targets.llvm import parallel
from onepass.targets.llvm.compile import assembly, compile_ir, link
from onepass.targets.llvm.description import describe, describe_host
from onepass.targets.llvm.emit import emit, symbol_of
from onepass.targets.llvm.parallel import compile_many

# One tile a processor whose accumulators fill its registers but for a few.
TILES = {
    "x86-64-v4": (Conv(64, 64, 56, 3, r=14, q=2, v=16), r"vfmadd\w+ps\s.*%zmm", r"call|vgather"),
    "x86-64-v3": (Conv(64, 64, 56, 3, r=4, q=3, v=8), r"vfmadd\w+ps\s.*%ymm", r"call|vgather"),
    "cortex-a72": (Conv(64, 64, 56, 3, r=4, q=4, v=4), r"fmla\s+v", r"\bbl\b"),
}


def innermost(text: str) -> str:
    """The block with the most lines: the unrolled tile."""
    return max(re.split(r"^\.LBB\S+:", text, flags=re.M), key=len)


@pytest.mark.parametrize("name", TILES)
def test_convolution_holds_its_accumulators_in_registers(name: str) -> None:
    conv, multiply, calls = TILES[name]
    kernel = direct_conv(conv)
    text = assembly(emit(kernel, describe(name)), describe(name))
    block = innermost(text)
    multiplies = len(re.findall(multiply, block))
    assert multiplies == conv.v * conv.r * conv.q
    spills = len(re.findall(r"(?:16|32|64)-byte (?:Folded )?Spill", block))
    assert spills <= multiplies // 16
    assert not re.search(calls, block)


def test_broadcasts_come_from_memory() -> None:
    block = innermost(
        assembly(emit(direct_conv(TILES["x86-64-v4"][0]), describe("x86-64-v4")), describe("x86-64-v4"))
    )
    conv = TILES["x86-64-v4"][0]
    assert len(re.findall(r"vbroadcastss\s+-?\w*\(", block)) + block.count("{1to16}") >= conv.v * conv.r


def test_relu_is_one_instruction() -> None:
    at = (idx("i"), idx("v"))
    relu = binary("max", Load("x", at, F32), const(0.0, F32))
    params = Buffer("x", F32, (8, 16)), Buffer("y", F32, (8, 16))
    body = loop("i", 8, (loop("v", 16, (Store("y", at, relu),), "vector"),), "parallel")
    text = assembly(emit(Kernel("relu", params, (body,)), describe("x86-64-v4")), describe("x86-64-v4"))
    assert text.count("vmaxps") == 1 and "vcmp" not in text


def test_many_in_helpers_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target = describe_host()
    kernels = [replace(direct_conv(Conv(64, 64, 56, 3, r=r, q=2)), name=f"k{r}") for r in range(1, 9)]
    texts = [emit(kernel, target) for kernel in kernels]
    alone = [compile_ir(text, target) for text in texts]
    monkeypatch.setattr(parallel, "LINES_FOR_HELPER", 0)
    assert compile_many(texts, target, processes=3) == alone
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert compile_many(texts, target, processes=2) == alone
    code = link({symbol_of(k): c for k, c in zip(kernels, alone, strict=True)})
    assert len({code.address(symbol_of(kernel)) for kernel in kernels}) == len(kernels)


def test_errors() -> None:
    target = describe_host()
    with pytest.raises(InternalError, match="parse LLVM IR"):
        compile_ir("define nonsense", target)
    text = emit(direct_conv(Conv(16, 32, 4, 1, r=2, q=2)), target)
    with pytest.raises(InternalError, match="symbol 'absent'"):
        link({"absent": compile_ir(text, target)})
    with pytest.raises(OptionError, match="unknown target"):
        describe("z80")


def test_isa_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    if describe_host().isa == "avx512":
        monkeypatch.setenv("ONEPASS_ISA", "avx2")
        assert describe_host().isa == "avx2" and describe_host().lanes() == 8
        text = assembly(emit(direct_conv(TILES["x86-64-v3"][0]), describe_host()), describe_host())
        assert "zmm" not in text and "ymm" in text
    monkeypatch.setenv("ONEPASS_ISA", "mmx")
    with pytest.raises(OptionError, match="ONEPASS_ISA=mmx"):
        describe_host()


def test_symbols() -> None:
    assert symbol_of(Kernel("conv 1/relu:0", (), ())) == "conv_1_relu_0"
