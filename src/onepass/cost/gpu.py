"""GPUs as the cost model sees them: capacities and roofs by datasheet, and what a kernel leaves room for.

In: the name of a GPU, and what a compiled kernel takes of it. Out: a `Machine` for the roofline, and the
occupancy. A kernel that spills may show full occupancy: look at `Resources.spill_bytes` first.
"""

from __future__ import annotations

from dataclasses import dataclass

from onepass.core.errors import OptionError
from onepass.cost.machine import Machine, Roof

SCHEDULERS = 4  # the parts of an SM (a CU), each with a quarter of the registers and of the warps
REGISTER_UNIT = 8  # a thread's registers are allocated in eights, on every GPU below
MAX_THREADS = 1024  # a block, on every GPU below
OCCUPANCY_RULES = "CUDA C++ Programming Guide, technical specifications by compute capability"
CDNA3_RULES = "LLVM, AMDGPUBaseInfo.cpp, IsaInfo for gfx942: 8 waves a SIMD, 512 VGPRs, 16 barriers a CU"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: limits of one SM (AMD: one CU; its warps are wavefronts), and `roofs` with the source of each.

    `registers_per_sm` counts 32-bit registers, `max_registers` those of a thread. A block that asks for
    shared memory takes `shared_reserved_bytes` more, rounded up to `shared_unit_bytes`. `l2_bytes` is the
    last cache that all SMs share; `tensor_columns` the tensor memory of an SM. `limits` names their source.
    The roof `memory latency` (s) is that of a loaded memory.
    """

    name: str
    product: str
    sms: int
    warp_size: int
    warps_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    max_registers: int
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    shared_reserved_bytes: int
    shared_unit_bytes: int
    tensor_columns: int
    l2_bytes: int
    limits: str
    roofs: tuple[Roof, ...]

    def roof(self, what: str) -> float:
        """The limit `what`; raises KeyError where there is none."""
        return machine(self).roof(what, 1)


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel takes: registers of a thread, shared memory of a block, tensor memory columns.

    `spill_bytes`: what a thread stores to memory and loads again for want of registers.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    tensor_cores: bool
    tensor_columns: int = 0


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks on an SM at a time, the share of its warps that they are, and what allows no more of them.

    `limiter`: `warps`, `blocks`, `registers`, `shared memory` or `tensor memory`.
    """

    blocks_per_sm: int
    share: float
    limiter: str

    @property
    def launches(self) -> bool:
        return self.blocks_per_sm > 0


@dataclass(frozen=True, slots=True)
class Fit:
    """How a kernel fitted a GPU when it was compiled, or would not: one step of the search for its tile.

    `what`: its nodes and its tile. `objection`: why it does not run so; '' where it does. `bytes_in_flight`:
    of loads, on an SM, with as many blocks as `occupancy` tells. `resources` is None where no code was made.
    """

    what: str
    objection: str
    resources: Resources | None = None
    occupancy: Occupancy = Occupancy(0, 0.0, "")
    bytes_in_flight: int = 0

    def __str__(self) -> str:
        took = ""
        if self.resources is not None:
            took = (
                f": {self.resources.registers} registers, {self.resources.spill_bytes:,} bytes spilled a "
                f"thread, occupancy {self.occupancy.share:.0%} (limited by {self.occupancy.limiter})"
            )
        return f"{self.what}{took}; refused: {self.objection}" if self.objection else f"{self.what}{took}"


def occupancy(resources: Resources, warps: int, gpu: Gpu) -> Occupancy:
    """How many blocks of `warps` warps an SM holds: the rules of NVIDIA's occupancy calculator.

    They are LLVM's for CDNA3 too, with its own numbers.
    """
    shared = _up(resources.shared_bytes + gpu.shared_reserved_bytes, gpu.shared_unit_bytes)
    of_thread = _up(max(1, resources.registers), REGISTER_UNIT)
    of_part = gpu.registers_per_sm // SCHEDULERS // (of_thread * gpu.warp_size)
    needs_barrier = warps > 1 or gpu.warp_size == 32  # what limits the blocks of a CU is its barriers
    limits = {
        "warps": gpu.warps_per_sm // warps,
        "blocks": gpu.blocks_per_sm if needs_barrier else gpu.warps_per_sm,
        "registers": of_part * SCHEDULERS // warps,
        "shared memory": gpu.shared_bytes_per_sm // max(1, shared),
        "tensor memory": gpu.tensor_columns // resources.tensor_columns if resources.tensor_columns else 1024,
    }
    limits.update((limiter, 0) for limiter, asked, most in _asked(resources, warps, gpu) if asked > most)
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return Occupancy(blocks, blocks * warps / gpu.warps_per_sm, limiter)


def refusal(resources: Resources, warps: int, gpu: Gpu) -> str:
    """Why a kernel cannot be launched, in words; empty where it can."""
    for limiter, asked, most in _asked(resources, warps, gpu):
        if asked > most:
            unit = " bytes" if limiter == "shared memory" else ""
            return f"{limiter}: a block asks for {asked:,}{unit}, {gpu.product} has {most:,}"
    found = occupancy(resources, warps, gpu)
    return "" if found.launches else f"{found.limiter}: an SM of {gpu.product} has no room for one block"


def bytes_in_flight_needed(gpu: Gpu) -> float:
    """Bytes that the loads of an SM must have under way to keep memory busy: latency x bandwidth (Little)."""
    return gpu.roof("memory latency") * gpu.roof("memory") / gpu.sms


def machine(gpu: Gpu) -> Machine:
    """The GPU for the roofline, as one worker with two levels, `l2` and `memory`.

    A vector is a warp of 32-bit lanes, and `l1_bytes` the shared memory of an SM.
    """
    return Machine(
        gpu.product, gpu.name, gpu.warp_size * 32, gpu.max_registers, gpu.sms, gpu.shared_bytes_per_sm,
        gpu.l2_bytes, 0, gpu.roofs,
    )  # fmt: skip


def find_gpu(name: str) -> Gpu:
    """The GPU of a name such as `cuda:sm_90`; raises OptionError for one that is not described."""
    if name not in GPUS:
        known = ", ".join(f"{gpu.name} ({gpu.product})" for gpu in GPUS.values())
        raise OptionError(
            f"unknown GPU {name!r}", why="onepass knows no capacities for it",
            remedy=f"choose one of {known}",
        )  # fmt: skip
    return GPUS[name]


def _asked(resources: Resources, warps: int, gpu: Gpu) -> tuple[tuple[str, int, int], ...]:
    """What a block asks for and the most that one may have, by limiter."""
    return (
        ("warps", warps, min(gpu.warps_per_sm, MAX_THREADS // gpu.warp_size)),
        ("registers", resources.registers, gpu.max_registers),
        ("shared memory", resources.shared_bytes, gpu.shared_bytes_per_block),
        ("tensor memory", resources.tensor_columns, gpu.tensor_columns),
    )


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


_LAUNCH = Roof(
    "launch", 2e-6, "s", 1,
    "assumption: an empty kernel takes 1.5 us, and one follows another in a graph after 0.5 us (NVIDIA "
    "technical blog, Getting Started with CUDA Graphs, 2019, on V100: 3.4 us for each kernel of 2.9 us)",
    "2019-09",
)  # fmt: skip


def _peaks(sheet: str, date: str, float32: float, float16: float, float64: float) -> tuple[Roof, ...]:
    """In flop/s, without sparsity; bfloat16 is as fast as float16 on every GPU below."""
    scalar, matrix = "no tensor cores", "tensor cores, dense, sums in float32"
    peaks = (
        ("float32", float32, scalar), ("float16", float16, matrix), ("bfloat16", float16, matrix),
        ("float64", float64, scalar),
    )  # fmt: skip
    return tuple(
        Roof(f"{dtype} fma", value, "flop/s", 1, f"datasheet: {sheet}; {by}", date)
        for dtype, value, by in peaks
    )


def _nvidia_latency(bytes_in_flight: int, sms: int, bandwidth: float) -> Roof:
    """From what NVIDIA's own library asks a streaming kernel to have in flight on an SM."""
    return Roof(
        "memory latency", bytes_in_flight * sms / bandwidth, "s", 1,
        f"derived by Little's law from {bytes_in_flight:,} bytes in flight on an SM: NVIDIA CCCL, "
        "cub/device/dispatch/tuning/tuning_transform.cuh, arch_to_min_bytes_in_flight", "2025",
    )  # fmt: skip


def _bandwidth(level: str, value: float, method: str, date: str) -> Roof:
    return Roof(level, value, "byte/s", 1, method, date)


_A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM"
_A100 = Gpu(
    "cuda:sm_80", "NVIDIA A100 SXM 80GB", 108, 32, 64, 32, 65536, 255, 167936, 166912, 1024, 128, 0, 40 << 20,
    f"{OCCUPANCY_RULES}, 8.0; {_A100_SHEET}; NVIDIA A100 Tensor Core GPU Architecture whitepaper",
    (
        *_peaks(_A100_SHEET, "2021-06", 19.5e12, 312e12, 9.7e12),
        _bandwidth(
            "l2", 5120 * 1.41e9, "datasheet: NVIDIA A100 Tensor Core GPU Architecture whitepaper, A100 L2 "
            "Cache: reads 5120 bytes a clock; at the boost clock of 1410 MHz", "2020-05",
        ),
        _bandwidth("memory", 2.039e12, f"datasheet: {_A100_SHEET}", "2021-06"),
        _nvidia_latency(16 << 10, 108, 2.039e12),
        _LAUNCH,
    ),
)  # fmt: skip
_H100_SHEET = "NVIDIA H100 Tensor Core GPU datasheet, H100 SXM"
_H100 = Gpu(
    "cuda:sm_90", "NVIDIA H100 SXM", 132, 32, 64, 32, 65536, 255, 233472, 232448, 1024, 128, 0, 50 << 20,
    f"{OCCUPANCY_RULES}, 9.0; NVIDIA H100 Tensor Core GPU Architecture whitepaper",
    (
        *_peaks(_H100_SHEET, "2023", 67e12, 989e12, 34e12),
        _bandwidth(
            "l2", 5120 * 1.755e9, "estimate, NVIDIA states none: the 5120 bytes a clock of the A100, at a "
            "boost clock of 1755 MHz", "2023",
        ),
        _bandwidth("memory", 3.35e12, f"datasheet: {_H100_SHEET}", "2023"),
        _nvidia_latency(32 << 10, 132, 3.35e12),
        _LAUNCH,
    ),
)  # fmt: skip
_B200_SHEET = "NVIDIA HGX B200, an eighth of the figures for eight GPUs"
_B200 = Gpu(
    "cuda:sm_100", "NVIDIA B200", 148, 32, 64, 32, 65536, 255, 233472, 232448, 1024, 128, 512, 126 << 20,
    f"{OCCUPANCY_RULES}, 10.0; NVIDIA Blackwell Tuning Guide (L2); PTX ISA, tensor memory: 512 columns",
    (
        *_peaks(_B200_SHEET, "2025", 75e12, 2.25e15, 37e12),
        _bandwidth(
            "l2", 2 * 5120 * 1.755e9, "estimate, NVIDIA states none: on each of two dies the 5120 bytes a "
            "clock of the A100, at the clock assumed for cuda:sm_90", "2025",
        ),
        _bandwidth("memory", 8e12, "datasheet: NVIDIA Blackwell Architecture Technical Brief, B200", "2024"),
        _nvidia_latency(64 << 10, 148, 8e12),
        _LAUNCH,
    ),
)  # fmt: skip
_CDNA3 = "AMD CDNA 3 Architecture white paper"
_MI300X_SHEET = "AMD Instinct MI300X Accelerator data sheet"
_MI300X = Gpu(
    "hip:gfx942", "AMD Instinct MI300X", 304, 64, 32, 16, 131072, 512, 65536, 65536, 0, 512, 0, 256 << 20,
    f"{CDNA3_RULES}; {_CDNA3}; the Infinity Cache stands for the L2, as no L2 is shared by all CUs",
    (
        *_peaks(_MI300X_SHEET, "2023-12", 163.4e12, 1307.4e12, 81.7e12),
        _bandwidth("l2", 17.2e12, f"datasheet: {_CDNA3}, Infinity Cache", "2023-12"),
        _bandwidth("memory", 5.3e12, f"datasheet: {_MI300X_SHEET}", "2023-12"),
        Roof("memory latency", 1.29e-6, "s", 1, "assumption, AMD states none: that of cuda:sm_90", "2025"),
        _LAUNCH,
    ),
)  # fmt: skip
GPUS = {gpu.name: gpu for gpu in (_A100, _H100, _B200, _MI300X)}
