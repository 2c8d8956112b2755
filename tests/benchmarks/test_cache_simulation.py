import numpy as np
import pytest

from cache_simulation import Row, build, cells, geometry, missing_tools, parse_counts, simulate, total
from onepass.compare.setup import inputs_of, set_up
from onepass.core.settings import Settings
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx
from onepass.zoo import catalog

COUNTS = """version: 1
creator: callgrind-3.19.0
part: 1
desc: Trigger: Client Request: launch
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
fn=(1) k1
0 5 4 3
totals: 100 40 20 1 10 5 1 3

part: 2
desc: Trigger: Client Request: launch
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
totals: 100 40 20 1 10 5 1 3 4

part: 3
desc: Trigger: Program termination
events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
totals: 9 9 9 9 9 9 9 9 9
"""


def test_counts_are_those_of_launches_in_order():
    # Zeros at the end of a line are left out.
    assert parse_counts(COUNTS) == [(64 * 15, 64 * 3), (64 * 15, 64 * 7)]


def test_another_file_is_not_counted():
    with pytest.raises(ValueError, match="callgrind"):
        parse_counts("nothing")


@pytest.mark.parametrize(("size", "ways", "given"), [
    (48 << 10, 8, (64, 12)), (32 << 10, 8, (64, 8)), (2 << 20, 16, (2048, 16)), (33 << 20, 16, (32768, 16)),
])
def test_a_cache_has_a_power_of_two_of_sets(size, ways, given):
    sets, each = given
    assert geometry(size, ways) == f"{sets * each * 64},{each},64"


def test_rows_add_up_and_nothing_predicted_has_no_ratio():
    rows = [Row("a", "row", (3000, 0, 0), (1000, 2, 3)), Row("b", "row", (1000, 500, 0), (1000, 8, 9))]
    assert total(rows) == Row("all", "", (4000, 500, 0), (2000, 10, 12))
    figures = "4.00 kB, 2.00 kB, 0.50, 500 B, 10 B, 0.02, 0 B, 12 B, –"
    assert cells(total(rows)) == ["all", "", *figures.split(", ")]


@pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
def test_the_program_computes_the_model_and_misses_what_it_must(tmp_path, monkeypatch):
    setup = set_up(Settings(threads=1))
    if setup.target.isa == "avx512":
        monkeypatch.setenv("ONEPASS_ISA", "avx2")
        setup = set_up(Settings(threads=1))
    loaded = load_onnx(catalog.build("row_chain"))
    graph = import_onnx(loaded, {"input": (512, 256)})
    compiled = setup.with_fuse("none").compile(graph)
    inputs = list(inputs_of(loaded, graph).values())
    starts = build(compiled, setup.target, inputs, tmp_path)
    counts = simulate(tmp_path, geometry(8 << 10, 8), geometry(64 << 10, 16))
    assert len(counts) == len(compiled.program.launches) == 4
    once = 2 * 512 * 256 * 4  # read and written
    for beyond_first, beyond_last in counts:
        assert once <= beyond_last <= beyond_first <= 1.1 * once
    (expected,) = compiled.program.run(inputs)
    made = np.fromfile(tmp_path / "image", expected.dtype, expected.size, offset=starts[0])
    assert compare(made.reshape(expected.shape), expected, 256).within
