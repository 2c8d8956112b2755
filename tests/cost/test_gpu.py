"""GPUs by datasheet: every figure tells its source, and occupancy follows the makers' rules."""

from __future__ import annotations

import pytest

from onepass.core.errors import OptionError
from onepass.cost.gpu import (
    GPUS,
    Gpu,
    Resources,
    bytes_in_flight_needed,
    find_gpu,
    machine,
    occupancy,
    refusal,
)
from onepass.cost.roofline import Traffic, estimate

HOPPER, CDNA3 = find_gpu("cuda:sm_90"), find_gpu("hip:gfx942")
EVERY = pytest.mark.parametrize("gpu", GPUS.values(), ids=list(GPUS))


def using(registers: int = 32, shared_bytes: int = 0, tensor_columns: int = 0) -> Resources:
    return Resources(registers, 0, shared_bytes, False, tensor_columns)


@EVERY
def test_every_figure_has_a_source(gpu: Gpu) -> None:
    dtypes = ("float32", "float16", "bfloat16", "float64")
    expected = {f"{dtype} fma" for dtype in dtypes} | {"l2", "memory", "memory latency", "launch"}
    assert {roof.what for roof in gpu.roofs} == expected and len(gpu.roofs) == len(expected)
    for roof in gpu.roofs:
        kind, _, source = roof.method.partition(" ")
        assert kind.rstrip(":,") in ("datasheet", "derived", "estimate", "assumption")
        assert source and roof.date
    assert gpu.limits and gpu.roof("memory") < gpu.roof("l2")


@EVERY
def test_the_roofline_takes_a_gpu(gpu: Gpu) -> None:
    def bound(flops: int, level: str, size: int, dtype: str) -> str:
        return estimate(Traffic(flops, size, {level: size}, dtype=dtype), machine(gpu), 1).bound  # type: ignore[dict-item]

    assert bound(1 << 20, "memory", 1 << 30, "float32") == "memory"
    assert bound(1 << 20, "l2", 1 << 30, "float32") == "l2"
    assert bound(1 << 44, "memory", 1 << 20, "bfloat16") == "compute"
    assert bound(1, "memory", 1 << 10, "float64") == "launch"


@pytest.mark.parametrize("registers, blocks", [(30, 16), (80, 6), (154, 3), (226, 2), (255, 2)])
def test_occupancy_of_hopper(registers: int, blocks: int) -> None:
    found = occupancy(using(registers), 4, HOPPER)
    assert (found.blocks_per_sm, found.share) == (blocks, blocks * 4 / 64)
    assert found.limiter == ("warps" if registers == 30 else "registers")


@pytest.mark.parametrize("registers, waves", [(64, 8), (65, 7), (128, 4), (129, 3), (256, 2), (257, 1)])
def test_waves_of_a_simd_of_cdna3(registers: int, waves: int) -> None:
    assert occupancy(using(registers), 4, CDNA3).blocks_per_sm == waves  # four waves, one on each SIMD


def test_what_limits_is_named() -> None:
    assert occupancy(using(), 1, HOPPER).limiter == "blocks"
    assert occupancy(using(), 1, CDNA3).limiter == "warps"  # one wave needs no barrier
    shared = occupancy(using(shared_bytes=100 << 10), 4, HOPPER)
    assert (shared.blocks_per_sm, shared.limiter) == (2, "shared memory")
    assert occupancy(using(shared_bytes=114 << 10), 4, HOPPER).blocks_per_sm == 1  # each reserves 1 KiB
    columns = occupancy(using(tensor_columns=256), 4, find_gpu("cuda:sm_100"))
    assert (columns.blocks_per_sm, columns.limiter) == (2, "tensor memory")


@EVERY
def test_more_of_anything_never_fits_better(gpu: Gpu) -> None:
    for warps in (1, 2, 4, 8, 16):
        counts = range(1, gpu.max_registers + 1)
        by_registers = [occupancy(using(count), warps, gpu).share for count in counts]
        sizes = range(0, gpu.shared_bytes_per_block + 1, 512)
        by_shared = [occupancy(using(shared_bytes=size), warps, gpu).share for size in sizes]
        assert by_registers == sorted(by_registers, reverse=True)
        assert by_shared == sorted(by_shared, reverse=True) and by_shared[-1] > 0


@EVERY
def test_what_cannot_be_launched_is_told(gpu: Gpu) -> None:
    assert not refusal(using(), 4, gpu) and occupancy(using(), 4, gpu).launches
    wrong = {
        "shared memory": (using(shared_bytes=gpu.shared_bytes_per_block + 1), 4), "warps": (using(), 64),
        "registers": (using(gpu.max_registers + 1), 4), "tensor memory": (using(tensor_columns=513), 4),
    }  # fmt: skip
    for limiter, (resources, warps) in wrong.items():
        found = occupancy(resources, warps, gpu)
        assert not found.launches and found.limiter == limiter
        assert refusal(resources, warps, gpu).startswith(f"{limiter}: ")
    crowded = refusal(using(gpu.max_registers), 16, gpu)
    assert crowded.startswith("registers") and not occupancy(using(gpu.max_registers), 16, gpu).launches


@EVERY
def test_bytes_in_flight_follow_from_latency_and_bandwidth(gpu: Gpu) -> None:
    needed = bytes_in_flight_needed(gpu)
    assert needed * gpu.sms / gpu.roof("memory latency") == pytest.approx(gpu.roof("memory"))
    assert 8 << 10 <= needed < gpu.registers_per_sm * 4  # an SM can hold what it must have asked for


@pytest.mark.parametrize("name", ["cuda", "cuda:sm_70", "hip:gfx1100", "cpu", ""])
def test_an_unknown_gpu_lists_the_known(name: str) -> None:
    with pytest.raises(OptionError) as error:
        find_gpu(name)
    assert all(known in error.value.remedy for known in GPUS)
