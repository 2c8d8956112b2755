"""Two products in one kernel, attention among them: numbers in Triton's interpreter, and what is refused."""

import numpy as np
import pytest
from gpu_cases import attention, case_of_graph, graph_of, inputs_of, mlp, normal, planned_on_gpu
from interpreted import interpret

from onepass.core.dtypes import BF16, F16, F32, dtype_of_numpy
from onepass.core.settings import Settings
from onepass.core.tensor import TensorType
from onepass.core.tolerance import compare
from onepass.gpu_pipeline import compile_for_gpu
from onepass.graph.interpret import evaluate
from onepass.graph.ir import Graph, Node
from onepass.loops.tile import Tile
from onepass.tiles import shaper
from onepass.tiles.choose import Candidate, chain_candidates

pytest.importorskip("triton")
pytest.importorskip("torch")
INF = float("inf")


def check(cases, folder, tile=None):
    """Each graph is one kernel, and agrees with float64."""
    programs = [case_of_graph(graph, inputs, "auto", tile, "chain") for graph, inputs in cases]
    for (graph, inputs), program, outputs in zip(cases, programs, interpret(programs, folder), strict=True):
        assert len(program.kernels) == 1
        expected = evaluate(graph, inputs, np.float64)
        for name in graph.outputs:
            assert dtype_of_numpy(outputs[name].dtype) == graph.types[name].dtype
            operations = (4 if graph.types[name].dtype != F32 else 64) * (1 + len(graph.nodes))
            found = compare(outputs[name], expected[name], 500, operations=operations)
            assert found.within, f"{name} of {graph.types}: {found}"


def masks(rows, length):
    """-inf at the end, in the first half, in a triangle, and everywhere: that row is NaN."""
    found = np.zeros((4, 1, rows, length))
    found[0, ..., length // 3 :] = found[1, ..., : length // 2] = -INF
    found[2, 0][np.triu_indices(rows, 1, length)] = -INF
    found[3, 0, ::2] = -INF
    return found


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_attention_holds_whole_rows(tmp_path, dtype):
    graphs = [attention(dtype=dtype), attention(1, 1, 5, 197, 64, dtype), attention(1, 3, 20, 64, 16, dtype)]
    cases = [(graph, inputs_of(graph)) for graph in graphs]
    masked = attention(4, 2, 13, 29, 40, dtype, (4, 1, 13, 29))
    cases.append((masked, inputs_of(masked, mask=masks(13, 29))))
    check(cases, tmp_path)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_attention_block_by_block(tmp_path, dtype):
    graphs = [attention(1, 2, 20, 77, 40, dtype), attention(1, 1, 33, 64, 16, dtype)]
    cases = [(graph, inputs_of(graph)) for graph in graphs]
    masked = attention(4, 1, 20, 45, 16, dtype, (4, 1, 20, 45))
    cases.append((masked, inputs_of(masked, mask=masks(20, 45))))
    check(cases, tmp_path, Tile(16, 64, 64, 4, 2, middle=16))


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_a_product_of_nothing_but_padding(tmp_path, dtype):
    """The one place of the output reads a zero beside the image: a constant, which gets the model's type."""
    window = {"kernel_shape": (1,), "strides": (2,), "dilations": (1,), "pads": (1, 0), "group": 1}
    weights = {"w": normal(8, 1, 1)}
    graph = graph_of({"x": (3, 1, 1)}, [("conv", "x w", window)], dtype=dtype, constants=weights)
    check([(graph, inputs_of(graph))], tmp_path)


def test_infinite_scores_are_nan_as_the_formula_has_it(tmp_path):
    graph = attention(1, 1, 16, 40, 16, F32, (1, 1, 1, 40))
    mask = np.zeros((1, 1, 1, 40))
    mask[..., 20] = INF
    check([(graph, inputs_of(graph, mask=mask))], tmp_path, Tile(16, 16, 16, 4, 1, middle=16))


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("tile", [None, Tile(16, 16, 16, 1, 1, middle=32), Tile(32, 64, 32, middle=128)])
def test_two_matrices(tmp_path, dtype, tile):
    graphs = [mlp(dtype=dtype), mlp(64, 32, 64, 64, dtype)]
    check([(graph, inputs_of(graph)) for graph in graphs], tmp_path, tile)


def test_rows_of_the_first_product_are_normalized(tmp_path):
    constants = {"a": normal(24, 50), "b": normal(50, 20, seed=1), "one": normal(50), "zero": normal(50)}
    norm = ("layer_normalization", "v0 one zero", {"axis": -1, "epsilon": 1e-5})
    nodes = [("matmul", "x a", {}), norm, ("matmul", "v1 b", {})]
    graph = graph_of({"x": (3, 7, 24)}, nodes, constants=constants)
    check([(graph, inputs_of(graph))], tmp_path)


def test_convolutions_of_one_place(tmp_path):
    window = {"strides": (1, 1), "dilations": (1, 1), "group": 1}
    one = {**window, "kernel_shape": (1, 1), "pads": (0,) * 4}
    three = {**window, "kernel_shape": (3, 3), "pads": (1,) * 4}
    constants = {"a": normal(40, 16, 3, 3, scale=0.1), "b": normal(24, 40, 1, 1, scale=0.2)}
    nodes = [("conv", "x a", three), ("relu", "v0", {}), ("conv", "v1 b", one)]
    graph = graph_of({"x": (2, 16, 9, 7)}, nodes, constants=constants)
    check([(graph, inputs_of(graph))], tmp_path)


def test_heads_side_by_side_again(tmp_path):
    """The transpose after attention is where its output is stored."""
    graph = attention(2, 3, 13, 21, 40)
    nodes = (*graph.nodes, Node("turn", "transpose", ("v4",), ("out",), {"perm": (0, 2, 1, 3)}))
    types = graph.types | {"out": TensorType(F32, (2, 13, 3, 40))}
    turned = Graph("turned", nodes, graph.inputs, ("out",), types, graph.constants)
    check([(turned, inputs_of(turned))], tmp_path)


def test_queries_are_scaled_where_they_are_read(tmp_path):
    """Also where log(0) would stand beside them: width 40 is cut in steps of 64."""
    shapes = {"q": (1, 2, 13, 40), "k": (1, 2, 40, 21), "v": (1, 2, 21, 40)}
    nodes = [("exp", "q", {}), ("log", "v0", {}), ("abs", "v1", {}), ("log", "v2", {})]
    nodes += [("matmul", "v3 k", {}), ("softmax", "v4", {"axis": -1}), ("matmul", "v5 v", {})]
    graph = graph_of(shapes, nodes)
    check([(graph, inputs_of(graph, q=1.5 + np.abs(normal(1, 2, 13, 40))))], tmp_path)


def form_of_regions(graph, **options):
    planned, _ = planned_on_gpu(graph, **options)
    return [region.form for region in planned.plan.regions]


def test_what_others_read_is_written():
    graph = mlp()
    middle = Graph("middle", graph.nodes, graph.inputs, ("v2", "v4"), graph.types, graph.constants)
    assert form_of_regions(graph) == ["chain"] and form_of_regions(middle) == ["contraction"] * 2
    nodes = (*graph.nodes, Node("more", "relu", ("v2",), ("v5",), {}))
    types = graph.types | {"v5": graph.types["v2"]}
    read_again = Graph("again", nodes, graph.inputs, ("v4", "v5"), types, graph.constants)
    assert "chain" not in form_of_regions(read_again)


def test_a_product_that_adds_what_it_multiplies_is_no_chain():
    constants = {"a": normal(32, 32), "b": normal(32, 32)}
    nodes = [("matmul", "x a", {}), ("matmul", "v0 b", {}), ("add", "v1 v0", {})]
    graph = graph_of({"x": (64, 32)}, nodes, constants=constants)
    planned, _ = planned_on_gpu(graph)
    (edge,) = (each for each in planned.plan.decisions if (each.value, each.consumer) == ("v0", "matmul1"))
    assert edge.home == "memory" and "read by more than the second product" in edge.detail


def test_attention_over_no_keys_is_zero_and_no_chain(tmp_path):
    graph = attention(length=0)
    assert "chain" not in form_of_regions(graph)
    check([(graph, inputs_of(graph))], tmp_path)


def test_a_row_over_nothing_reads_nothing(tmp_path):
    ops = ("reduce_sum", "reduce_max")
    graphs = [graph_of({"x": (0, 3)}, [(op, "x", {"axes": (0,), "keepdims": 0})]) for op in ops]
    check([(graph, inputs_of(graph)) for graph in graphs], tmp_path)


def test_long_rows_of_softmax_need_the_rewrite():
    graph = attention(1, 12, 4096, 4096, 64, F16)
    planned, context = planned_on_gpu(graph)
    (shaped,) = planned.shaped
    assert shaped.tile.middle < 4096
    source = context.shaper.build(context, shaped, shaped.tile).kernel.source
    assert "higher" in source and "for block" in source
    exact, _ = planned_on_gpu(graph, rewrites=())
    assert [region.form for region in exact.plan.regions] == ["contraction", "row", "contraction"]
    (edge,) = (each for each in exact.plan.decisions if each.consumer == "matmul4" and each.producer)
    assert "4,096 columns" in edge.detail and "bytes of shared memory" in edge.detail


def test_short_rows_of_softmax_are_held():
    for length in (128, 197):
        planned, context = planned_on_gpu(attention(1, 12, length, length, 64, F16))
        (shaped,) = planned.shaped
        assert shaped.tile.middle >= length
        assert "higher" not in context.shaper.build(context, shaped, shaped.tile).kernel.source


def test_names_of_the_model_are_not_those_of_the_kernel(tmp_path):
    shapes = {"p0": (1, 1, 20, 16), "k": (1, 1, 16, 40), "first": (1, 1, 40, 16)}
    types = {name: TensorType(F32, shape) for name, shape in shapes.items()}
    names = {"acc": (20, 40), "top": (20, 40), "exp": (20, 40), "m": (20, 40), "p1": (20, 16), "p2": (20, 16)}
    types |= {name: TensorType(F32, (1, 1, *shape)) for name, shape in names.items()}
    nodes = (
        Node("one", "matmul", ("p0", "k"), ("acc",), {}), Node("two", "tanh", ("acc",), ("exp",), {}),
        Node("three", "exp", ("exp",), ("top",), {}), Node("four", "softmax", ("top",), ("m",), {"axis": -1}),
        Node("five", "matmul", ("m", "first"), ("p1",), {}), Node("six", "exp", ("p1",), ("p2",), {}),
    )  # fmt: skip
    graph = Graph("names", nodes, tuple(shapes), ("p2",), types, {})
    check([(graph, inputs_of(graph))], tmp_path, Tile(16, 16, 16, 4, 1, middle=16))


def squares(width, dtype, rows=16384):
    """relu(x a) b, all matrices `width` wide."""
    nodes = [("matmul", "x a", {}), ("relu", "v0", {}), ("matmul", "v1 b", {})]
    constants = dict.fromkeys("ab", np.zeros((width, width)))
    return graph_of({"x": (rows, width)}, nodes, dtype=dtype, constants=constants)


@pytest.mark.parametrize("width", [128, 256])
def test_squares_are_fused_while_an_sm_has_room(tmp_path, width):
    graph = squares(width, F16)
    (kernel,) = compile_for_gpu(graph, Settings(), "cuda:sm_90", tmp_path).kernels
    assert kernel.spill_bytes == 0 and kernel.occupancy.launches
    assert kernel.compiled.matrix_instruction.startswith("wgmma")
    apart, _ = planned_on_gpu(graph, "none")
    bytes_apart = sum(region.estimate.traffic.compulsory_bytes for region in apart.plan.regions)
    assert kernel.estimate.traffic.compulsory_bytes == bytes_apart - 4 * graph.types["v1"].size_bytes
    assert kernel.estimate.seconds < sum(region.estimate.seconds for region in apart.plan.regions)


def test_wide_squares_are_apart_and_the_reason_is_named(tmp_path):
    found = compile_for_gpu(squares(1024, F16), Settings(), "cuda:sm_90", tmp_path)
    assert [region.form for region in found.plan.regions] == ["contraction"] * 2
    (edge,) = (each for each in found.plan.decisions if (each.value, each.consumer) == ("v1", "matmul2"))
    assert edge.home == "memory" and edge.alternative == "cache" and edge.alternative_s > edge.seconds
    assert "held up by l2 on its SM, in tiles of" in edge.detail


def test_what_does_not_fit_is_split_between_the_products(tmp_path, monkeypatch):
    """Tiles that spill: the products run apart, each with what it had."""
    monkeypatch.setattr(shaper, "chain_candidates", only_tiles(Tile(128, 128, 64, 4, 1, middle=256)))
    found = compile_for_gpu(squares(256, F32), Settings(), "cuda:sm_90", tmp_path)
    assert [region.name for region in found.plan.regions] == ["matmul0 … relu1", "matmul2"]
    (edge,) = (each for each in found.plan.decisions if (each.value, each.consumer) == ("v1", "matmul2"))
    assert edge.reason == "does_not_fit" and edge.fits[0].objection and not edge.fits[-1].objection
    found = compile_for_gpu(attention(1, 12, 256, 256, 64), Settings(), "cuda:sm_90", tmp_path)
    assert [region.name for region in found.plan.regions] == ["transpose0 … mul2", "softmax3", "matmul4"]


def only_tiles(*tiles):
    """`chain_candidates` that knows no other tiles."""

    def candidates(*arguments):
        best = chain_candidates(*arguments)[0]
        return [Candidate(tile, best.estimate) for tile in tiles]

    return candidates
