"""The machine: roofs measured by generated kernels, kept on disk, not in the way when they cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onepass.core.errors import OptionError
from onepass.cost.machine import LEVELS, Machine, Roof
from onepass.loops.verify import verify
from onepass.runtime import machine_cache, probe
from onepass.runtime.host import KIB, Caches, available_cores, caches, cpu_model, memory_bytes
from onepass.runtime.machine_cache import (
    machine_from_json,
    machine_path,
    machine_to_json,
    measure_machine,
)

ROOF = Roof("l1", 1e9, "byte/s", 1, "measured", "2024-01-01")
MACHINE = Machine("cpu", "avx2", 256, 16, 4, 1, 2, 3, (ROOF,))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and a probe that takes milliseconds."""
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "_FMA_STEPS", 1000)
    monkeypatch.setattr(probe, "_MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(probe, "_MOVED", dict.fromkeys(("l1", "l2", "l3"), 1 << 20))
    monkeypatch.setattr(machine_cache, "caches", lambda: Caches(32 * KIB, 64 * KIB, 128 * KIB))
    return tmp_path / "cache"


def test_json_round_trip() -> None:
    assert machine_from_json(machine_to_json(MACHINE)) == MACHINE


def test_every_roof_that_the_cost_model_asks_for_is_measured(folder: Path) -> None:
    machine = measure_machine(workers=2)
    for workers in (1, 2):
        for dtype in ("float32", "float64"):
            assert machine.peak_flops_per_s(dtype, workers) > 1e8
        for level in LEVELS:
            assert machine.bandwidth_bytes_per_s(level, workers) > 1e7
        assert 0 < machine.launch_s(workers) < 1
    assert machine.fma_ports() in (1, 2)
    assert {roof.workers for roof in machine.roofs} == {1, 2}
    assert all(roof.method and roof.date for roof in machine.roofs)


def test_measured_once_then_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure_machine(workers=1)
    assert measure_machine(workers=1) == first
    (file,) = folder.iterdir()
    file.write_text(machine_to_json(MACHINE))
    assert measure_machine(workers=1) == MACHINE
    assert measure_machine(fresh=True, workers=1) != MACHINE


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '{"format": 5}', machine_to_json(MACHINE)[:-20],
        machine_to_json(MACHINE).replace("1000000000.0", '"fast"'),
        machine_to_json(MACHINE).replace("1000000000.0", "-1.0"),
        machine_to_json(MACHINE).replace("1000000000.0", "NaN"),
        machine_to_json(MACHINE).replace("1000000000.0", "1e999"),
        machine_to_json(MACHINE).replace('"vector_bits": ', '"vector_bits": 0.'),
        machine_to_json(MACHINE).replace('"format": 5', '"format": 0'),
        "\udcff",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_measured_again(folder: Path, text: str) -> None:
    measure_machine(workers=1)
    (file,) = folder.iterdir()
    file.write_bytes(text.encode(errors="surrogateescape"))
    machine = measure_machine(workers=1)
    assert machine.name == cpu_model()
    assert json.loads(file.read_text())["name"] == cpu_model()


def test_works_without_a_place_to_write(folder: Path) -> None:
    folder.write_text("a file where the directory should be")
    assert measure_machine(workers=1).roofs


def test_no_more_workers_are_measured_than_there_are_cores(folder: Path) -> None:
    assert max(roof.workers for roof in measure_machine(workers=1000).roofs) == available_cores()
    assert machine_path(1000) == machine_path(available_cores())


@pytest.mark.parametrize(
    "shares_gb_s,served",
    [((150, 160, 170), 300), ((60, 140, 170), 200), ((40, 30, 140), 100), ((31, 35, 60), 50), ((), 300)],
)
def test_a_shared_third_level_counts_for_what_it_serves(shares_gb_s: tuple[int, ...], served: int) -> None:
    shares = dict(zip("abc", (225, 200, 100), strict=True)) if shares_gb_s else {}
    rates = {"l3": 160.0, "memory": 30.0, **dict(zip("abc", shares_gb_s, strict=False))}
    assert probe.serving_bytes(rates, shares, told=300) == served


def test_no_measurement_with_zero_workers(folder: Path) -> None:
    with pytest.raises(OptionError):
        measure_machine(workers=0)


@pytest.mark.parametrize("bits,registers", [(512, 32), (256, 16), (128, 32), (128, 16)])
def test_kernels_of_the_probe_obey_the_loop_ir(bits: int, registers: int) -> None:
    for measure in probe._measures(bits, registers, Caches(32 * KIB, 1 << 20, 1 << 25), 3):
        verify(measure.kernel)
        assert measure.amount > 0


def test_the_host_says_plausible_things() -> None:
    sizes = caches()
    assert KIB <= sizes.l1 <= sizes.l2 <= sizes.l3
    assert cpu_model() and available_cores() >= 1 and memory_bytes() > 1 << 20


def test_cache_sizes_from_sysfs(tmp_path: Path) -> None:
    for name, level, kind, size in [
        ("index0", "1", "Data", "48K"), ("index1", "1", "Instruction", "32K"),
        ("index2", "2", "Unified", "2M"),
    ]:  # fmt: skip
        (tmp_path / name).mkdir()
        for file, text in (("level", level), ("type", kind), ("size", size)):
            (tmp_path / name / file).write_text(text + "\n")
    sizes = caches(tmp_path)
    assert (sizes.l1, sizes.l2) == (48 * KIB, 2048 * KIB)
    assert sizes.l3 == 8 << 20
    assert caches(tmp_path / "missing") == Caches(32 * KIB, 512 * KIB, 8 << 20)
