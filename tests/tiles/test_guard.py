"""What compiled kernels take decides: other tiles, all registers, or a split; each step is in the ledger."""

from dataclasses import replace

import numpy as np
import pytest
from interpreted import Case, interpret

import gpu_fit
import onepass.ops.registry  # noqa: F401  (defines the ops)
from gpu_fit import live, rows, total
from onepass import gpu_guard
from onepass.core.dtypes import F16, F32
from onepass.core.errors import InternalError, ModelError
from onepass.core.settings import Settings
from onepass.core.tensor import TensorType
from onepass.core.tolerance import compare
from onepass.cost.gpu import bytes_in_flight_needed, find_gpu
from onepass.forms.nest import FormMismatch
from onepass.fuse.split import cheapest_split
from onepass.gpu_pipeline import compile_for_gpu
from onepass.graph.interpret import evaluate
from onepass.graph.ir import Graph, Node
from onepass.loops.tile import Tile
from onepass.pipeline import laid_out
from onepass.report.ledger import why
from onepass.tiles import shaper
from onepass.tiles.printer import Printer

pytest.importorskip("torch")
pytest.importorskip("triton")
TARGET = "cuda:sm_90"


def graph_of(nodes, inputs, outputs, constants=(), size=1 << 24):
    return gpu_fit.graph_of(nodes, inputs, outputs, (size,), F32, dict(constants))


def ratios(count, op="tanh"):
    """A sum of tanh(c x) / (sum of all tanh(c x)): much that lives at once, of one small load."""
    constants = [(f"c{k}", np.array(0.5 + k / 64, np.float32)) for k in range(count)]
    nodes = [Node(f"scale{k}", "mul", ("x", c), (f"v{k}",), {}) for k, (c, _) in enumerate(constants)]
    nodes += [Node(f"{op}{k}", op, (f"v{k}",), (f"u{k}",), {}) for k in range(count)]
    whole = total(nodes, [f"u{k}" for k in range(count)])
    nodes += [Node(f"ratio{k}", "div", (f"u{k}", whole), (f"w{k}",), {}) for k in range(count)]
    return graph_of(nodes, ("x",), (total(nodes, [f"w{k}" for k in range(count)]),), constants)


def compiled(graph, folder, target=TARGET, fuse="auto"):
    found = compile_for_gpu(graph, Settings(fuse=fuse), target, folder)
    for kernel in found.kernels:
        assert kernel.spill_bytes == 0 and kernel.occupancy.launches and not kernel.compiled.refusal
        assert kernel.steps[-1].resources is kernel.compiled.resources and not kernel.steps[-1].objection
    return found


@pytest.mark.parametrize(("count", "retiled"), [(2, False), (16, False), (32, True), (64, True)])
def test_live_values_ask_for_smaller_tiles(tmp_path, count, retiled):
    found = compiled(live(count), tmp_path)
    (kernel,) = found.kernels
    assert len(kernel.steps) > 1 if retiled else len(kernel.steps) == 1
    told = why(found.plan, "root", "scale0")
    assert "stays in registers" in told and f"{kernel.compiled.resources.registers} registers" in told
    assert f"occupancy {kernel.occupancy.share:.0%}" in told and ("refused" in told) == retiled


def test_at_the_cliff_all_registers_are_tried_before_a_split(tmp_path, monkeypatch):
    monkeypatch.setattr(shaper, "pointwise_tiles", lambda size, gpu: (Tile(1, 1024, 0, 4),))
    monkeypatch.setattr(Printer, "live_words", lambda self: 0)
    found = compiled(live(40), tmp_path)
    assert len(found.kernels) > 1
    cut = [decision for decision in found.plan.decisions if decision.reason == "does_not_fit"]
    assert cut and all(decision.home == "memory" for decision in cut)
    cliff, limited, *after = cut[0].fits
    assert cliff.occupancy.share == 1.0 and cliff.resources.spill_bytes > 4 * 40 and cliff.objection
    assert limited.resources.registers > cliff.resources.registers and limited.objection
    assert after and not after[-1].objection and after[-1].resources.spill_bytes == 0
    told = why(found.plan, cut[0].producer, cut[0].consumer)
    assert "goes through memory" in told and "spilled" in told and "occupancy 100%" in told


def test_what_cannot_be_launched_gets_another_tile(tmp_path):
    types = {name: TensorType(F16, (rows, 768)) for name, rows in (("x", 8192), ("w", 768), ("y", 8192))}
    weights = {"w": np.ones((768, 768), np.float16)}
    node = Node("product", "matmul", ("x", "w"), ("y",), {})
    graph = Graph("product", (node,), ("x",), ("y",), types, weights)
    found = compiled(graph, tmp_path, "hip:gfx942")
    steps = found.kernels[0].steps
    assert "cannot be launched: shared memory" in steps[0].objection and not steps[0].occupancy.launches
    assert steps[0].objection in why(found.plan, "x", "product")


def test_hopeless_tiles_are_not_compiled_and_parts_compute_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(shaper, "pointwise_tiles", lambda size, gpu: (Tile(1, 1024, 0, 4),))
    graph = live(40, 2500)
    found = compiled(graph, tmp_path, fuse="all")
    assert len(found.kernels) > 1
    (cut, *_) = (decision for decision in found.plan.decisions if decision.reason == "does_not_fit")
    assert cut.fits[0].resources is None and "registers" in cut.fits[0].objection
    random, types = np.random.default_rng(0), graph.types
    inputs = {name: random.standard_normal(2500).astype(np.float32) for name in graph.inputs}
    kernels = dict(zip(found.names, (kernel.built.kernel for kernel in found.kernels), strict=True))
    case = Case(
        kernels, found.launches, found.slots, {name: (types[name], inputs[name]) for name in inputs},
        {name: types[name] for name in graph.outputs}, laid_out(found.constants), found.plan.arena_bytes,
    )  # fmt: skip
    (outputs,) = interpret([case], tmp_path)
    expected = evaluate(graph, inputs, np.float64)
    for name, array in outputs.items():
        assert (agreement := compare(array, expected[name], 40, operations=80)).within, agreement


def test_low_occupancy_asks_for_smaller_tiles(tmp_path):
    """Nothing spills, but so few programs fit an SM that their loads do not keep memory busy."""
    found = compiled(ratios(8, "abs"), tmp_path)
    (kernel,) = found.kernels
    first, *_, last = kernel.steps
    assert "under way on an SM" in first.objection and first.resources.spill_bytes == 0
    assert first.occupancy.limiter == "registers" and first.occupancy.share < 0.5 < last.occupancy.share
    told = why(found.plan, "abs0", "ratio0")
    for step in (first, last):
        assert f"{step.resources.registers} registers" in told
        assert f"occupancy {step.occupancy.share:.0%}" in told


def test_too_few_bytes_in_flight_are_told(tmp_path):
    """No tile of the fused kernel helps, and apart its nodes would move many times as much: it stays."""
    (kernel,) = compiled(ratios(6), tmp_path).kernels
    assert all("under way on an SM" in step.objection for step in kernel.steps[:-1])
    assert 0 < kernel.bytes_in_flight < bytes_in_flight_needed(find_gpu(TARGET))
    assert "no other way is faster" in kernel.steps[-1].what


def test_the_cheapest_edge_is_cut():
    nodes = [
        Node("first", "relu", ("small",), ("a",), {}), Node("second", "add", ("a", "x"), ("b",), {}),
        Node("third", "relu", ("b",), ("c",), {}),
    ]  # fmt: skip
    graph = graph_of(nodes, ("small", "x"), ("c",))
    graph.types.update({"small": TensorType(F32, (1,)), "a": TensorType(F32, (1,))})
    first, second = cheapest_split(graph, {}, nodes)
    assert [node.name for node in first] == ["first"] and len(second) == 2
    first, second = cheapest_split(live(8), {}, live(8).nodes)
    assert {node.name for node in first}.isdisjoint(node.name for node in second)
    assert len(first) + len(second) == len(live(8).nodes)


# 1,024 x 8: in pairs the sums would be slower together, as their values pass through L2 apart.
@pytest.mark.parametrize(("length", "terms"), [(1024, 8), (4096, 8), (16384, 4), (65536, 8)])
def test_rows_of_any_length(tmp_path, length, terms):
    """A LayerNorm of a sum: short rows are held whole, long ones are read in chunks, once for each pass."""
    (kernel,) = compiled(rows(length, terms), tmp_path).kernels
    assert ("for start in range" in kernel.built.kernel.source) == (length > 16384)


def refuse(monkeypatch, refusal):
    """Compiled code of which no kernel can be launched."""
    compile_all = gpu_guard.compile_tiles

    def compiling(kernels, target, directory):
        return [replace(code, refusal=refusal) for code in compile_all(kernels, target, directory)]

    monkeypatch.setattr(gpu_guard, "compile_tiles", compiling)


def test_a_node_that_no_tile_fits_is_an_error_that_names_it(tmp_path, monkeypatch):
    refuse(monkeypatch, "shared memory of 300,000 bytes")
    graph = graph_of([Node("double", "add", ("x", "x"), ("y",), {})], ("x",), ("y",))
    with pytest.raises(ModelError, match="no kernel of this node fits cuda:sm_90") as caught:
        compile_for_gpu(graph, Settings(), TARGET, tmp_path)
    assert "'double'" in str(caught.value) and "300,000 bytes" in str(caught.value)


def test_regions_that_are_cut_come_apart_down_to_their_nodes(tmp_path, monkeypatch):
    refuse(monkeypatch, "no room")
    graph = live(4, 1024)
    with pytest.raises(ModelError) as caught:
        compile_for_gpu(graph, Settings(), TARGET, tmp_path)
    assert sum(f"'{node.name}'" in str(caught.value) for node in graph.nodes) == 1


def test_what_was_cut_must_not_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr("onepass.fuse.planner.cut_through", lambda context, nodes: None)
    refuse(monkeypatch, "no room")
    with pytest.raises(InternalError, match="cut apart and are in one region again"):
        compile_for_gpu(live(4, 1024), Settings(), TARGET, tmp_path)


def test_a_region_that_no_tile_builds_is_split(tmp_path, monkeypatch):
    """Then nothing was compiled that the ledger could quote."""
    build = shaper.GpuShaper.build

    def building(self, context, shaped, tile):
        if len(shaped.nodes) > 1:
            raise FormMismatch("not today")
        return build(self, context, shaped, tile)

    monkeypatch.setattr(shaper.GpuShaper, "build", building)
    found = compiled(live(2, 1024), tmp_path)
    assert len(found.kernels) == len(found.plan.graph.nodes)
    assert any("no tile has room" in decision.detail for decision in found.plan.decisions)
