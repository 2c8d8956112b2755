"""Side by side: turns, kernels judged alone, peers, and errors that no average hides."""

import sys

import numpy as np
import onnx
import pytest
from user_models import chain, conv_relu

import onepass
from onepass.compare import fusion, kernels, race
from onepass.compare.kernels import check_kernels, checks_verdict
from onepass.compare.peers import Peer, Task, open_peer
from onepass.compare.race import Entrant, Race
from onepass.compare.setup import inputs_of, set_up
from onepass.compare.timing import LEAST_ROUNDS, TIMED, interleave
from onepass.core.settings import Settings
from onepass.core.tolerance import compare
from onepass.frontends.onnx_embed import self_contained
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx
from onepass.graph.interpret import evaluate
from onepass.zoo import catalog


def test_runs_take_turns():
    order = []
    times = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0)
    turn = 1 + TIMED
    assert order == ["a"] * turn + (["b"] * turn + ["a"] * turn) * (LEAST_ROUNDS - 1) + ["b"] * turn
    assert times["a"].runs == LEAST_ROUNDS * TIMED and times["a"].min_s <= times["a"].median_s


def padded_chain():
    """Convolutions with borders and more channels than a block, a join and a softmax over rows."""
    weights = np.random.default_rng(1)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1,5,9,9] x) => (float[1,19,9,9] y)
        {
            [one] a = Conv<pads=[1,1,1,1]>(x, v)
            [two] b = Relu(a)
            [three] c = Conv<pads=[1,1,1,1]>(b, w)
            [four] d = Add(c, b)
            [five] y = Softmax<axis=3>(d)
        }""")
    for name, shape in (("v", (19, 5, 3, 3)), ("w", (19, 19, 3, 3))):
        array = weights.standard_normal(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("fuse", ["none", "auto", "all"])
def test_each_kernel_is_judged_by_what_it_read(fuse, monkeypatch):
    model = padded_chain()
    graph = import_onnx(model)
    inputs = inputs_of(load_onnx(model), graph)
    checks = check_kernels(graph, set_up(Settings(fuse=fuse)), inputs)
    assert checks[-1].value == "y" and all(check.comparison.within for check in checks)
    assert "are right" in checks_verdict(checks)[0]

    def wrong_softmax(part, given, *dtype):
        found = evaluate(part, given, *dtype)
        return {name: array * (2 if name == "y" else 1) for name, array in found.items()}

    monkeypatch.setattr(kernels, "evaluate", wrong_softmax)
    verdict = checks_verdict(check_kernels(graph, set_up(Settings(fuse=fuse)), inputs))
    assert len(verdict) == 1 and "five" in verdict[0] and "outside the bound" in verdict[0]


def test_a_nan_on_one_side_is_an_infinite_error():
    exact = np.ones(4)
    assert fusion._relative_l2(np.ones(4, np.float32), exact) == 0
    assert fusion._relative_l2(np.float32([1, np.nan, 1, 1]), exact) == float("inf")
    assert fusion._relative_l2(np.float32([1, np.nan, 1, 1]), np.array([1, np.nan, 1, 1])) == 0


def task(model):
    loaded = load_onnx(model)
    shapes = catalog.default_shapes(model)
    graph = import_onnx(loaded, shapes)
    return Task(loaded, graph, inputs_of(loaded, graph), 1)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "torch"])
def test_a_peer_computes_the_same(name):
    pytest.importorskip(name)
    model = padded_chain()
    given = task(model)
    (result,) = open_peer(name, given).run()
    (expected,) = onepass.compile(model)(**given.inputs)
    assert compare(result, expected, 171).within


@pytest.mark.parametrize("name", ["dncnn", "espcn"])
def test_torch_runs_the_zoo(name):
    pytest.importorskip("torch")
    given = task(catalog.build(name))
    result = open_peer("torch", given).run()[0]
    assert compare(result, evaluate(given.graph, given.inputs)["output"], 576).within


def test_torch_folds_a_batch_norm_into_its_convolution():
    pytest.importorskip("torch")
    utils = pytest.importorskip("torch._inductor.utils")
    given = task(conv_norm_clip())
    peer, (code,) = utils.run_and_get_code(lambda: open_peer("torch", given))
    assert peer.label.endswith(" compile")
    assert "conv" in code and "batch_norm" not in code
    assert compare(peer.run()[0], evaluate(given.graph, given.inputs)["y"], 45).within


def conv_norm_clip():
    """As exporters write a convolution, its batch norm, and a ReLU6 with bounds without dimensions."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1,5,9,9] x) => (float[1,16,9,9] y)
        <float low = {0.0}, float high = {6.0}>
        {
            a = Conv<pads=[1,1,1,1]>(x, w)
            b = BatchNormalization(a, scale, bias, mean, variance)
            y = Clip(b, low, high)
        }""")
    random = np.random.default_rng(2)
    arrays = {"w": random.standard_normal((16, 5, 3, 3), np.float32)}
    arrays |= {name: random.random(16, np.float32) + 1 for name in ("scale", "bias", "mean", "variance")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    return model


@pytest.mark.parametrize(("group", "shape"), [(1, (6, 6, 2, 2)), (6, (6, 1, 2, 2))])
def test_torch_keeps_a_batch_norm_after_a_transposed_convolution_right(group, shape):
    pytest.importorskip("torch")
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1,6,5,5] x) => (float[1,6,10,10] y)
        {{
            a = ConvTranspose<strides=[2,2], group={group}>(x, w)
            y = BatchNormalization(a, scale, bias, mean, variance)
        }}""")
    random = np.random.default_rng(3)
    arrays = {"w": random.standard_normal(shape, np.float32)}
    arrays |= {name: random.random(6, np.float32) + 1 for name in ("scale", "bias", "mean", "variance")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    given = task(model)
    assert compare(open_peer("torch", given).run()[0], evaluate(given.graph, given.inputs)["y"], 6).within


def test_torch_keeps_the_numbers_of_two_hard_sigmoids_apart():
    pytest.importorskip("torch")
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1,5,9,9] x) => (float[1,7,9,9] y)
        {
            a = Conv(x, v)
            b = HardSigmoid<alpha=0.2, beta=0.5>(a)
            c = Conv(b, w)
            y = HardSigmoid<alpha=0.1, beta=0.3>(c)
        }""")
    random = np.random.default_rng(4)
    for name, shape in (("v", (6, 5, 1, 1)), ("w", (7, 6, 1, 1))):
        array = random.standard_normal(shape, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    given = task(model)
    assert compare(open_peer("torch", given).run()[0], evaluate(given.graph, given.inputs)["y"], 6).within


def test_without_a_compiler_torch_says_what_to_install(monkeypatch):
    pytest.importorskip("torch")
    builder = pytest.importorskip("torch._inductor.cpp_builder")

    def none():
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(builder, "get_cpp_compiler", none)
    with pytest.raises(onepass.UserError, match=r"No working C\+\+ compiler found(.|\n)*install g\+\+"):
        open_peer("torch", task(conv_norm_clip()))


def test_a_peer_that_is_not_there_or_cannot(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(onepass.UserError, match="openvino is not installed"):
        open_peer("openvino", task(padded_chain()))
    pytest.importorskip("torch")
    with pytest.raises(onepass.UserError, match=r"'three' \(Mish\)"):
        model = padded_chain()
        model.opset_import[0].version = 18
        model.graph.node[2].CopyFrom(onnx.helper.make_node("Mish", ["b"], ["c"], name="three"))
        open_peer("torch", task(model))


@pytest.mark.parametrize(("peer_s", "text"), [
    (2.0, "onepass wins: 2.00 times as fast as P"), (0.5, "P wins: onepass takes 2.00 times as long"),
    (1.01, "equally fast"),
])  # fmt: skip
def test_the_verdict_says_who_wins(peer_s, text):
    ours, peer = (Entrant(name, label, s, s, 0.0) for name, label, s in (("o", "O", 1.0), ("p", "P", peer_s)))
    found = Race("m", "machine", 1, "", 10, (ours, peer), ours, {}, 0.5)
    assert text in found.verdict() and found.ratio == peer_s


def test_a_peer_with_other_results_does_not_take_part(monkeypatch):
    def open_two(name, given):
        exact = evaluate(given.graph, given.inputs)["y"]
        return Peer(name, name, lambda: [exact * (2 if name == "openvino" else 1)])

    monkeypatch.setattr(race, "open_peer", open_two)
    found = race.run_race(
        "net", load_onnx(padded_chain()), set_up(Settings(threads=1)), {}, ["openvino", "torch"], budget_s=0.0
    )
    assert [entrant.name for entrant in found.entrants] == ["onepass", "torch"]
    assert "results differ by 1.0e+00" in found.missing["openvino"]
    assert found.unfused.label == "onepass, unfused" and 0 < found.limit_s < found.unfused.min_s


def test_without_a_peer_there_is_no_winner():
    ours = Entrant("o", "O", 1.0, 1.0, 0.0)
    found = Race("m", "machine", 1, "", 10, (ours,), ours, {"p": "is not there"}, 0.5)
    assert found.ratio is None and "No peer ran" in found.verdict()


def test_a_model_written_again_has_its_weights_and_the_shapes_of_the_run():
    data = self_contained(load_onnx(chain()), {"a": (3,), "b": (3,), "y": (3,)})
    again = onnx.load_model_from_string(data)
    assert [d.dim_value for d in again.graph.input[0].type.tensor_type.shape.dim] == [3]
    weights = onnx.load_model_from_string(self_contained(load_onnx(conv_relu().SerializeToString())))
    assert weights.graph.initializer[1].raw_data == conv_relu().graph.initializer[1].raw_data
