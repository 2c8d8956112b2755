"""What the code generator needs to know of a processor: its LLVM names and its vector registers.

In: the host, or the name of a processor to compile for. Out: a `TargetDescription`. The environment
variable `ONEPASS_ISA=avx2` makes an AVX-512 host generate AVX2 code.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import Literal

import llvmlite.binding as llvm  # type: ignore[import-untyped]

from onepass.core.errors import OptionError

Isa = Literal["avx512", "avx2", "neon", "generic"]
# name: (register width in bits, registers); the sizes are architectural.
VECTOR_REGISTERS: dict[Isa, tuple[int, int]] = {
    "avx512": (512, 32),
    "avx2": (256, 16),
    "neon": (128, 32),
    "generic": (128, 16),
}
AVX512_FEATURES = ("avx512f", "avx512dq", "avx512bw", "avx512vl")
AVX2_FEATURES = ("avx2", "fma", "f16c")


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """A processor to generate code for; `triple`, `cpu` and `features` are LLVM's spelling."""

    triple: str
    cpu: str
    features: str
    isa: Isa
    vector_bits: int
    vector_registers: int

    def lanes(self, size_bytes: int = 4) -> int:
        """Elements of `size_bytes` in one vector register."""
        return self.vector_bits // (8 * size_bytes)


def _make(triple: str, cpu: str, features: str, isa: Isa) -> TargetDescription:
    return TargetDescription(triple, cpu, features, isa, *VECTOR_REGISTERS[isa])


_NAMED = {
    "x86-64-v3": _make("x86_64-unknown-linux-gnu", "x86-64-v3", "", "avx2"),
    "x86-64-v4": _make("x86_64-unknown-linux-gnu", "x86-64-v4", "-prefer-256-bit", "avx512"),
    "cortex-a72": _make("aarch64-unknown-linux-gnu", "cortex-a72", "", "neon"),
}


def describe(name: str) -> TargetDescription:
    """The processor called `name`, for cross compilation; raises `OptionError` for an unknown one."""
    if name not in _NAMED:
        raise OptionError(f"unknown target '{name}'", remedy=f"use one of {', '.join(sorted(_NAMED))}")
    return _NAMED[name]


def describe_host() -> TargetDescription:
    """The machine this runs on, with the vector extension that `ONEPASS_ISA` allows.

    Raises `OptionError` when `ONEPASS_ISA` names an extension that the machine lacks.
    """
    has = dict(llvm.get_host_cpu_features())
    isa = _host_isa(has)
    wanted = os.environ.get("ONEPASS_ISA", "")
    if wanted and wanted != isa:
        if (wanted, isa) != ("avx2", "avx512"):
            raise OptionError(
                f"ONEPASS_ISA={wanted} is not possible here", why=f"this processor has {isa}",
                remedy="unset ONEPASS_ISA, or use 'avx2' on an AVX-512 processor",
            )  # fmt: skip
        isa = "avx2"
    on = {name: there and not (isa == "avx2" and "avx512" in name) for name, there in has.items()}
    if isa.startswith("avx"):
        # LLVM uses 512-bit registers only where the processor's tuning does not prefer 256 bits.
        on["prefer-256-bit"] = False
    keep = [name for name in sorted(on) if on[name] or "avx512" in name or name == "prefer-256-bit"]
    features = ",".join(("+" if on[name] else "-") + name for name in keep)
    return _make(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, isa)


def _host_isa(has: dict[str, bool]) -> Isa:
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "neon"
    if all(has.get(name) for name in AVX512_FEATURES + AVX2_FEATURES):
        return "avx512"
    return "avx2" if all(has.get(name) for name in AVX2_FEATURES) else "generic"
