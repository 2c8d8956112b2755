"""Side by side: turns, kernels judged alone, peers, and errors that no average hides."""

import sys

import numpy as np
import onnx
import pytest
from user_models import chain, conv_relu

import onepass
from onepass.compare import fusion, kernels
from onepass.compare.kernels import check_kernels, checks_verdict
from onepass.compare.peers import Task, open_peer
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
    assert text in Race("m", "machine", 1, "", 10, (ours, peer), {}).verdict()


def test_a_model_written_again_has_its_weights_and_the_shapes_of_the_run():
    data = self_contained(load_onnx(chain()), {"a": (3,), "b": (3,), "y": (3,)})
    again = onnx.load_model_from_string(data)
    assert [d.dim_value for d in again.graph.input[0].type.tensor_type.shape.dim] == [3]
    weights = onnx.load_model_from_string(self_contained(load_onnx(conv_relu().SerializeToString())))
    assert weights.graph.initializer[1].raw_data == conv_relu().graph.initializer[1].raw_data
