"""Winograd's form against float64: every cut, odd shapes, its error bound, NaN, and when it is off."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from region_runs import graph_of, machine, planned, random_inputs, run_regions

from onepass.core.settings import DEFAULT_REWRITES as ON
from onepass.core.settings import Settings
from onepass.core.tolerance import compare
from onepass.forms import winograd
from onepass.forms.nest import FormMismatch
from onepass.forms.winograd import WinogradSchedule, matrices, transformed_weights
from onepass.forms.winograd_choice import SAFE_INPUT, error_bound
from onepass.fuse.layouts import assign_layouts
from onepass.fuse.rules import REASONS
from onepass.graph.interpret import evaluate
from onepass.pipeline import compile_graph
from onepass.report.ledger import why
from onepass.targets.llvm.description import describe_host

SAME, VALID, SKEWED = (1, 1, 1, 1), (0, 0, 0, 0), (0, 1, 2, 1)


@pytest.fixture(autouse=True, scope="module")
def apart():
    """The convolution stays a region of its own, which no chain takes in."""

    def refuse(*_):
        raise FormMismatch("kept apart")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onepass.fuse.planner.shape_chain", refuse)
        yield


def normal(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attrs(kernel, pads=VALID):
    return {"kernel_shape": (kernel,) * 2, "strides": (1, 1), "dilations": (1, 1), "pads": pads, "group": 1}


def copy(channels):
    """Weights of a 1x1 convolution that changes nothing."""
    return np.eye(channels, dtype=np.float32)[:, :, None, None]


def network(shape, outputs=16, pads=SAME, tail=(), weights=None, leaving=None, **constants):
    """A 3x3 convolution `v1` and `tail`, between 1x1 ones that copy, so that values between are blocked."""
    weights = normal(outputs, shape[1], 3, 3) if weights is None else weights
    nodes = [("conv", "x p", attrs(1)), ("conv", "v0 w", attrs(3, pads)), *tail]
    leaving = leaving or (f"v{len(nodes) - 1}",)
    names = tuple(f"v{len(nodes) + k}" for k in range(len(leaving)))
    nodes += [("conv", f"{value} q", attrs(1)) for value in leaving]
    constants |= {"p": copy(shape[1]), "q": copy(outputs), "w": weights}
    return graph_of({"x": shape}, *nodes, constants=constants, outputs=names)


def forced(edge, tiles=3, rows=2, vectors=1, parts=1, lanes=16):
    """Builds the 3x3 convolution in this way, whatever would be chosen; counts how often it could."""
    used = []

    def reshape(shaped):
        if shaped.alternative_s is None:
            return shaped
        used.append(shaped)
        schedule = WinogradSchedule(edge, tiles, rows, vectors, parts, lanes)
        return replace(shaped, form="winograd", winograd=schedule)

    return reshape, used


def wide(graph, lanes):
    """The graph with the widest border that is asked for, also where it is mostly zeros."""
    graph, layouts = assign_layouts(graph, lanes, ON)
    layouts["v0"] = replace(layouts["v0"], pads=((2, 6), (2, 6)))
    return graph, layouts


def run(graph, edge, fuse="all", workers=2, native=True, lanes=16, inputs=None, **cut):
    """The outputs with the convolution forced into the form."""
    reshape, used = forced(edge, lanes=lanes, **cut)
    graph, layouts = wide(graph, lanes)
    inputs = random_inputs(graph) if inputs is None else inputs
    found, _ = run_regions(graph, inputs, fuse, lanes, native, layouts, reshape, workers, rewrites=ON)
    assert len(used) == 1
    return found


def check(graph, edge, inputs=None, **options):
    inputs = random_inputs(graph) if inputs is None else inputs
    found, expected = run(graph, edge, inputs=inputs, **options), evaluate(graph, inputs, np.float64)
    for name, want in expected.items():
        comparison = compare(found[name], want, 9 * graph.constants["w"].shape[1])
        assert comparison.within, f"{name}: {comparison}"


def residual(outputs):
    """Batch norm with known statistics, a residual in another value, ReLU; two outputs of the region."""
    statistics = {name: np.abs(normal(outputs, seed=k)) + 0.5 for k, name in enumerate("smv")}
    tail = [("batch_normalization", "v1 s t m v", {"epsilon": 1e-5}), ("sigmoid", "v1", {}),
            ("add", "v2 v3", {}), ("relu", "v4", {})]  # fmt: skip
    return {"tail": tail, "t": normal(outputs, seed=9), **statistics}


def rational(matrix):
    return [[Fraction(value).limit_denominator(10**6) for value in row] for row in matrix.tolist()]


def identity_of_cook_and_toom(inputs, weights, outputs):
    """What y_i = sum_j d_(i+j) w_j lacks, for each i, w_j and d_k."""
    edge, size = len(outputs), len(inputs)
    return [
        sum(outputs[i][p] * weights[p][j] * inputs[p][k] for p in range(size)) - (i + j == k)
        for i in range(edge) for j in range(3) for k in range(size)
    ]  # fmt: skip


@pytest.mark.parametrize("edge", [2, 4])
def test_matrices_satisfy_the_identity_of_cook_and_toom(edge):
    """Exactly in rationals; nearly as they are, where only G, applied in float64, is rounded."""
    inputs, weights, outputs = matrices(edge)
    assert not any(identity_of_cook_and_toom(*map(rational, (inputs, weights, outputs))))
    assert max(map(abs, identity_of_cook_and_toom(inputs, weights, outputs))) < 2**-46
    for matrix in (inputs, outputs):
        assert (matrix == matrix.astype(np.float32)).all()


@pytest.mark.parametrize("edge", [2, 4])
def test_transformed_weights_are_in_order_and_zero_past_the_last_output(edge):
    weights, schedule = normal(19, 5, 3, 3), WinogradSchedule(edge, 1, 1, 2, 1, 16)
    made, g = transformed_weights(weights, schedule), matrices(edge)[1]
    assert made.shape == (1, (edge + 2) ** 2, 5, 2, 16)
    one = (g @ weights[17, 3].astype(np.float64) @ g.T).astype(np.float32)
    assert np.array_equal(made[0, :, 3, 1, 1], one.reshape(-1))
    assert not made[0, :, :, 1, 3:].any()


SIZES = [(7, 7), (13, 17), (14, 14), (2, 2), (3, 2)]


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("workers", [1, 2])
def test_images(edge, size, workers):
    check(network((1, 8, *size)), edge, workers=workers)


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("channels", [3, 17, 40])
@pytest.mark.parametrize("outputs", [3, 17, 40])
def test_channels_that_do_not_fill_vectors(edge, channels, outputs):
    graph = network((1, channels, 5, 6), outputs)
    check(graph, edge, lanes=4 if min(channels, outputs) < 8 else 16)


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("pads", [VALID, SKEWED])
@pytest.mark.parametrize("images", [1, 3])
def test_pads_and_batches(edge, pads, images):
    check(network((images, 16, 9, 8), 16, pads), edge)


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("outputs", [16, 19])
def test_what_follows_runs_on_the_tile(edge, lanes, outputs):
    """Batch norm, a second reader, residual and ReLU, two of whose values leave the region."""
    graph = network((2, 16, 7, 9), outputs, **residual(outputs), leaving=("v2", "v5"))
    check(graph, edge, lanes=lanes)
    check(graph, edge, lanes=lanes, fuse="limit=0")


CUTS = [
    {"tiles": 7, "rows": 3}, {"tiles": 5, "rows": 5, "vectors": 2}, {"tiles": 4, "rows": 3, "parts": 2},
    {"tiles": 2, "rows": 1, "vectors": 2, "parts": 2}, {"tiles": 64, "rows": 12, "vectors": 2},
]  # fmt: skip


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_every_way_to_cut(edge, cut):
    """Tiles that rows do not divide, parts of the channels, a last block that repeats its last tile."""
    check(network((1, 20, 9, 10), 64), edge, **cut)


@pytest.mark.parametrize("edge", [2, 4])
def test_interpreted(edge):
    check(network((1, 5, 3, 5), 6), edge, native=False, lanes=4)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_shapes_and_cuts(data):
    def pick(*values):
        return data.draw(st.sampled_from(values))

    def count(most):
        return data.draw(st.integers(1, most))

    edge, lanes, vectors, parts = pick(2, 4), pick(8, 16), count(3), pick(1, 2)
    groups = parts * count(2)
    outputs = groups * vectors * lanes - data.draw(st.integers(0, lanes // 2))
    shape = (count(3), lanes // 2 + count(40), 1 + count(18), 1 + count(18))
    pads = tuple(data.draw(st.lists(st.integers(1, 2), min_size=4, max_size=4)))
    cut = {"tiles": count(20), "rows": count(6), "vectors": vectors, "parts": parts}
    check(network(shape, outputs, pads), edge, lanes=lanes, workers=count(3), **cut)


def forms(graph, fuse="auto", rewrites=ON):
    return [region.form for region in planned(graph, fuse, 16, rewrites)[1].plan.regions]


@pytest.mark.parametrize("outputs", [32, 17])
def test_lanes_past_the_last_channel_read_nothing_outside_a_plain_value(outputs):
    """A gate for each channel that is not blocked, as an input of the model."""
    nodes = [("conv", "x p", attrs(1)), ("conv", "v0 w", attrs(3, SAME)), ("mul", "v1 r", {}),
             ("conv", "v2 q", attrs(1))]  # fmt: skip
    constants = {"p": copy(16), "q": copy(outputs), "w": normal(outputs, 16, 3, 3)}
    graph = graph_of({"x": (1, 16, 6, 6), "r": (1, outputs, 1, 1)}, *nodes, constants=constants)
    graph, layouts = wide(graph, 16)
    _, made = planned(graph, "all", 16, ON, layouts)
    region = next(s for s in made.shaped if [node.op for node in s.nodes][:2] == ["conv", "mul"])
    assert (region.alternative_s is not None) == (outputs == 32)
    if outputs == 32:
        check(graph, 4)


def test_what_follows_may_read_a_value_of_one_dimension():
    """One for each column, computed within the region, beside channels that do not fill their vectors."""
    graph = network((1, 16, 6, 6), 17, tail=[("exp", "c", {}), ("add", "v1 v2", {})], c=normal(6))
    _, made = planned(graph, "all", 16, ON, wide(graph, 16)[1])
    assert any("conv1" in {node.name for node in shaped.nodes} for shaped in made.shaped)


# ---- the error bound


def excess(graph, edge, size=1.0):
    """The largest error of the convolution alone, as a multiple of its bound."""
    inputs = {name: np.float32(size) * array for name, array in random_inputs(graph).items()}
    (found,) = run(graph, edge, inputs=inputs).values()
    (want,) = evaluate(graph, inputs, np.float64).values()
    bound = error_bound(graph.constants["w"], edge) * float(np.abs(inputs["x"]).max())
    return float(np.abs(found - want).max()) / bound


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_error_lies_within_its_bound(edge, size):
    assert excess(network((1, 40, 13, 17), 17), edge, size) <= 1


@pytest.mark.parametrize(("edge", "wrong"), [
    (2, lambda w: w.astype(np.float16).astype(np.float32)), (2, lambda w: w * np.float32(1.001)),
    (4, lambda w: w * np.float32(1.01)),
])  # fmt: skip
def test_the_bound_notices_wrong_weights(monkeypatch, edge, wrong):
    made = winograd.transformed_weights
    monkeypatch.setattr(winograd, "transformed_weights", lambda *given: wrong(made(*given)))
    assert excess(network((1, 16, 8, 8)), edge) > 1


# ---- values that are not finite


@pytest.mark.parametrize("edge", [2, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_spreads_over_its_tiles_only(edge, value):
    graph, (row, column) = network((1, 16, 11, 11)), (5, 4)
    inputs = random_inputs(graph)
    inputs["x"][0, :, row, column] = value
    (found,), (want,) = run(graph, edge, inputs=inputs).values(), evaluate(graph, inputs, np.float64).values()
    spoilt = ~np.isfinite(found[0]).all(axis=0)
    touched = np.zeros((11, 11), bool)
    for y in range(0, 11, edge):
        for x in range(0, 11, edge):
            if y - 1 <= row <= y + edge and x - 1 <= column <= x + edge:
                touched[y : y + edge, x : x + edge] = True
    assert not spoilt[~touched].any()
    assert spoilt[row - 1 : row + 2, column - 1 : column + 2].all()
    assert compare(found[..., ~touched], want[..., ~touched], 9 * 16).within


def test_without_rewrites_it_spreads_over_its_window_only():
    graph = network((1, 64, 16, 16), 64)
    assert "winograd" in forms(graph)
    assert "winograd" not in forms(graph, rewrites=frozenset())
    inputs = random_inputs(graph)
    inputs["x"][0, :, 5, 4] = np.nan
    found, _ = run_regions(graph, inputs, "auto", 16, True, rewrites=frozenset())
    spoilt = np.isnan(found["v2"][0]).any(axis=0)
    assert spoilt.sum() == 9 and spoilt[4:7, 3:6].all()


def test_weights_that_could_overflow_are_refused():
    """Results that the direct sum keeps finite stay finite."""
    large = normal(64, 64, 3, 3) * np.float32(1e30)
    graph = network((1, 64, 16, 16), 64, weights=large)
    _, made = planned(graph, "auto", 16, ON)
    assert all(shaped.form != "winograd" and shaped.alternative_s is None for shaped in made.shaped)
    inputs = {"x": random_inputs(graph)["x"] * np.float32(1e4)}
    found, _ = run_regions(graph, inputs, "auto", 16, True, rewrites=ON)
    assert np.isfinite(found["v2"]).all()
    largest = np.full((1, 64, 16, 16), SAFE_INPUT, np.float32)
    graph = network((1, 64, 16, 16), 64)
    found, _ = run_regions(graph, {"x": largest}, "auto", 16, True, rewrites=ON)
    assert "winograd" in forms(graph) and np.isfinite(found["v2"]).all()


# ---- when it is on


def test_fusing_nothing_leaves_it_off():
    """Every value in memory, the wider border included."""
    graph = network((1, 64, 14, 14), 64)
    assert "winograd" in forms(graph) and "winograd" not in forms(graph, "none")
    pads = [planned(graph, fuse, 16, ON)[0].layouts["v0"].pads for fuse in ("none", "auto")]
    assert pads == [((1, 1), (1, 1)), ((1, 3), (1, 3))]
    compiled = compile_graph(graph, Settings(fuse="none", cache=False), machine(16), describe_host(), 2)
    assert "winograd" not in {region.form for region in compiled.plan.regions}


def test_a_border_that_is_mostly_zeros_is_narrowed_not_given_up():
    """6x6 in tiles of 4 would be read up to 10x10."""
    pads = assign_layouts(network((1, 64, 6, 6), 64), 16, ON)[1]["v0"].pads
    assert pads == ((1, 1), (1, 1))


def test_the_ledger_holds_tiles_and_products():
    graph = network((1, 64, 14, 14), 64, tail=[("relu", "v1", {})])
    plan = planned(graph, "auto", 16, ON)[1].plan
    entries = [d for d in plan.decisions if d.reason == "winograd"]
    assert [d.value for d in entries] == ["conv1#tiles", "conv1#products"]
    bound = f"off by at most {error_bound(graph.constants['w'], 4):.1e} times the largest input"
    for d in entries:
        assert (d.home, d.producer, d.consumer, d.saved_bytes) == ("cache", "conv1", "conv1", {})
        assert d.value_bytes == 4 * 36 * 16 * 64
        assert d.detail.startswith(REASONS["winograd"]) and d.detail.endswith(bound)
        assert "F(4x4)" in d.detail and "4 times fewer" in d.detail
        assert f"weights {4 * 36 * 64 * 64:,} bytes instead of {4 * 9 * 64 * 64:,}" in d.detail
    told = why(plan, "conv1")
    assert told.count("\n") == 3 and "'conv1#tiles'" in told and "'conv1#products'" in told
    assert "#tiles" not in why(plan, "conv0", "conv1")
    direct = planned(graph, "auto", 16, ON - {"winograd"})[1].plan
    saved = [sum(sum(d.saved_bytes.values()) for d in each.decisions) for each in (plan, direct)]
    assert saved[0] == saved[1]


def test_a_convolution_that_it_would_slow_down_says_so():
    graph = network((1, 704, 4, 4), 704, VALID)  # four places, and all weights come from memory
    plan = planned(graph, "auto", 16, ON)[1].plan
    told = [d.detail for d in plan.decisions if (d.value, d.consumer) == ("v0", "conv1")]
    form = next(region.form for region in plan.regions if "conv1" in [n.name for n in region.nodes])
    assert form == "contraction" and "computed directly: Winograd is predicted to take" in told[0]
