"""Kernels of tiles compile ahead of time; what they take of a GPU is told, as is why one cannot run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.core.dtypes import BF16, F16, F32, DType
from onepass.core.errors import InternalError, OptionError
from onepass.cost.gpu import find_gpu, occupancy
from onepass.loops.ir import Buffer
from onepass.loops.tile import TileKernel
from onepass.targets.triton.compile import FUNCTION, CompiledTile, compile_tiles

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
HOPPER = "cuda:sm_90"


def tile(name: str, names: list[str], body: list[str], dtype: DType = F32, warps: int = 4) -> TileKernel:
    source = f"{HEAD}def {name}({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in body)
    params = tuple(Buffer(each, dtype, (1 << 20,)) for each in names)
    return TileKernel(name, source, params, (1024, 1, 1), warps)


def fan(count: int, live: bool, block: int = 1024) -> TileKernel:
    """A sum over `count` tensors; `live`: each is read again after the sum, so that all stay in registers."""
    inputs = [f"x{j}" for j in range(count)]
    outputs = [f"y{j}" for j in range(count if live else 1)]
    factors = [f"v{j} * " if live else "" for j in range(len(outputs))]
    body = [f"at = tl.program_id(0) * {block} + tl.arange(0, {block})"]
    body += [f"v{j} = tl.load(x{j} + at)" for j in range(count)]
    body += ["total = " + " + ".join(f"v{j} * v{j}" for j in range(count))]
    body += [f"tl.store(y{j} + at, {factor}tl.rsqrt(total + 1.0))" for j, factor in enumerate(factors)]
    return tile(f"fan_{count}_{block}", inputs + outputs, body)


def product(size: int, depth: int, dtype: DType = F16, warps: int = 4) -> TileKernel:
    """One block of `size` x `size` of a matrix product, `depth` at a time."""
    wide = f"tl.arange(0, {size})"
    body = [
        f"rows = tl.program_id(0) * {size} + {wide}",
        f"acc = tl.zeros(({size}, {size}), dtype=tl.float32)",
        f"for k in range(0, 1024, {depth}):",
        f"    deep = k + tl.arange(0, {depth})",
        "    left = tl.load(a + rows[:, None] * 1024 + deep[None, :])",
        f"    right = tl.load(b + deep[:, None] * 1024 + {wide}[None, :])",
        "    acc = tl.dot(left, right, acc)",
        f"tl.store(c + rows[:, None] * 1024 + {wide}[None, :], acc.to(c.dtype.element_ty))",
    ]
    return tile(f"product_{size}_{depth}", ["a", "b", "c"], body, dtype, warps)


FAMILY = {
    "fused 2": fan(2, live=True), "fused 16": fan(16, live=True), "fused 48": fan(48, live=True),
    "sum 16": fan(16, live=False), "fused 48, smaller": fan(48, live=True, block=256),
    "fused 16, limited": replace(fan(16, live=True), max_registers=64),
    "product": product(64, 32), "product, bfloat16": product(64, 32, BF16), "too large": product(64, 512),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, CompiledTile]]:
    directory = tmp_path_factory.mktemp("tiles")
    yield dict(zip(FAMILY, compile_tiles(list(FAMILY.values()), HOPPER, directory), strict=True))


def registers(tile: CompiledTile) -> int:
    assert tile.resources
    return tile.resources.registers


def share(tile: CompiledTile) -> float:
    assert tile.resources
    return occupancy(tile.resources, tile.kernel.warps, find_gpu(HOPPER)).share


def spills(tile: CompiledTile) -> int:
    assert tile.resources
    return tile.resources.spill_bytes


def test_values_that_stay_live_take_registers_and_occupancy(compiled: dict[str, CompiledTile]) -> None:
    few, many, streamed = (compiled[name] for name in ("fused 2", "fused 16", "sum 16"))
    assert registers(few) < registers(many) > registers(streamed)
    assert share(few) > share(many) < share(streamed)
    assert not any(map(spills, (few, many, streamed)))
    assert all(tile.binary[:4] == b"\x7fELF" and not tile.refusal for tile in (few, many, streamed))


def test_the_cliff_shows_in_spills_only(compiled: dict[str, CompiledTile]) -> None:
    cliff, smaller = compiled["fused 48"], compiled["fused 48, smaller"]
    assert share(cliff) == 1.0 and spills(cliff) > 4 * 48  # every value, and more than once
    assert spills(smaller) == 0 and share(smaller) < 1.0


def test_a_limit_of_registers_is_kept(compiled: dict[str, CompiledTile]) -> None:
    free, limited = compiled["fused 16"], compiled["fused 16, limited"]
    assert registers(limited) <= 64 < registers(free)
    assert share(limited) > share(free)
    assert spills(limited) > 0


def test_products_use_tensor_cores(compiled: dict[str, CompiledTile]) -> None:
    for name in ("product", "product, bfloat16"):
        resources = compiled[name].resources
        assert resources and resources.tensor_cores and resources.shared_bytes > 0
        assert compiled[name].matrix_instruction == "wgmma.mma_async"
        assert FUNCTION.encode() in compiled[name].binary
    others = [compiled[name].resources for name in ("fused 2", "fused 48")]
    assert not any(found and found.tensor_cores for found in others)


def test_too_much_shared_memory_is_told(compiled: dict[str, CompiledTile]) -> None:
    assert "shared memory" in compiled["too large"].refusal and "232,448" in compiled["too large"].refusal


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_100", "hip:gfx942"])
def test_other_gpus(target: str) -> None:
    kernels = [fan(4, live=True), product(128, 32), product(64, 512)]
    plain, matrix, large = compile_tiles(kernels, target, None)
    assert plain.resources and matrix.resources
    assert plain.resources.registers > 0 and not plain.resources.tensor_cores
    assert matrix.resources.tensor_cores and matrix.resources.registers > plain.resources.registers
    assert matrix.resources.tensor_columns == (128 if target == "cuda:sm_100" else 0)
    assert not plain.refusal and not matrix.refusal and large.refusal


def test_results_are_kept_and_distinct_kernels_compiled_once(tmp_path: Path) -> None:
    kernel = fan(2, live=True)
    source = kernel.source.replace(kernel.name, "layer_2").replace("total", "layer_2_sum").replace("v0", "p9")
    source = source.replace("    at =", '    """A layer."""\n    at =')
    renamed = replace(kernel, name="layer_2", source=source)
    first = compile_tiles([kernel, kernel, replace(kernel, grid=(1, 1, 1)), renamed], HOPPER, tmp_path)
    (entry,) = tmp_path.iterdir()
    again = compile_tiles([kernel], HOPPER, tmp_path)[0]
    assert [tile.cached for tile in first] == [False] * 4 and again.cached
    assert first[3].kernel is renamed and first[3].binary == first[0].binary
    assert replace(again, cached=False) == first[0]
    entry.write_bytes(entry.read_bytes()[:-1])
    repaired = compile_tiles([kernel], HOPPER, tmp_path)[0]
    assert not repaired.cached and repaired.resources == first[0].resources
    assert compile_tiles([kernel], HOPPER, tmp_path)[0].cached
    compile_tiles([replace(kernel, warps=8)], HOPPER, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_settings_of_triton_do_not_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert compile_tiles([fan(3, live=False)], HOPPER, None)[0].resources


@pytest.mark.parametrize("line", ["y[", "tl.store(y0, no_such_name)", "tl.store(y0, tl.no_such_function(1))"])
def test_a_wrong_source_is_a_bug(line: str) -> None:
    with pytest.raises(InternalError, match="kernel wrong"):
        compile_tiles([tile("wrong", ["y0"], [line])], HOPPER, None)


def test_a_compiler_that_dies_refuses_and_comes_back() -> None:
    fatal = fan(2, live=False)
    fatal = replace(fatal, source=fatal.source + "\nimport os\nos._exit(7)\n")
    dead, alive = compile_tiles([fatal, fan(5, live=False)], HOPPER, None)
    assert "ended with code 7" in dead.refusal and dead.resources is None
    assert alive.resources
    assert compile_tiles([fan(6, live=False)], HOPPER, None)[0].resources


def test_missing_triton_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(OptionError) as error:
        compile_tiles([fan(2, live=True)], HOPPER, None)
    assert error.value.remedy == "pip install 'onepass[cuda]'" and "Triton" in error.value.why


def test_unknown_gpu_lists_the_known() -> None:
    with pytest.raises(OptionError, match="cuda:sm_100"):
        compile_tiles([], "cuda:sm_70", None)
