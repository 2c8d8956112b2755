"""`onepass.compile` and calling a model: results, shapes, specializations, threads."""

import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest
from onnx import parser
from user_models import chain, conv_relu

import onepass
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.graph.interpret import evaluate


def image(batch=1):
    return np.random.default_rng(batch).standard_normal((batch, 3, 8, 8), np.float32)


def exact(model, **inputs):
    graph = import_onnx(model, {name: array.shape for name, array in inputs.items()})
    return evaluate(graph, inputs, np.float64)


@pytest.mark.parametrize("fuse", ["none", "auto", "all", "limit=1", "only=relu"])
def test_outputs_are_right_and_named_and_ordered_as_in_the_model(fuse):
    model = conv_relu()
    result = onepass.compile(model, fuse=fuse)(image(2))
    assert result.keys() == ("map", "sums") and list(dict(result)) == ["map", "sums"]
    expected = exact(model, image=image(2))
    for at, name in enumerate(result.keys()):
        assert result[name] is result[at]
        assert compare(result[at], expected[name], 64).within
    feature_map, sums = result
    assert feature_map.shape == (2, 4, 8, 8) and sums.shape == (2, 4)
    with pytest.raises(KeyError, match="the model's outputs are map, sums"):
        result["maps"]


@pytest.mark.parametrize("source", ["path", "text", "bytes", "proto"])
def test_every_kind_of_source_gives_the_same(source, tmp_path):
    model = chain()
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    given = {"path": path, "text": str(path), "bytes": path.read_bytes(), "proto": model}[source]
    a = np.float32([1, -2, 3])
    assert onepass.compile(given)(a, b=a)["y"].tolist() == [2, 0, 6]


def test_static_shapes_compile_at_once():
    m = onepass.compile(conv_relu("1"))
    assert [dict(record.shapes) for record in m.specializations] == [{"image": (1, 3, 8, 8)}]
    assert "declared" in m.specializations[0].reason
    assert m.plan.graph.outputs == ("map", "sums")


def test_given_shapes_compile_at_once_and_stay():
    m = onepass.compile(conv_relu(), shapes={"image": [2, 3, 8, 8]})
    assert len(m.specializations) == 1
    with pytest.raises(onepass.ShapeError, match="'image' has the wrong shape"):
        m(image(3))


def test_each_new_set_of_shapes_is_one_specialization():
    m = onepass.compile(conv_relu())
    assert m.specializations == []
    with pytest.raises(onepass.UserError, match="nothing is compiled yet"):
        _ = m.plan
    for batch in (1, 2, 1, 2, 2):
        assert m(image(batch))["map"].shape[0] == batch
    assert [record.shapes["image"][0] for record in m.specializations] == [1, 2]
    assert all("first call" in record.reason for record in m.specializations)
    assert m.specializations[0].misses > 0


def test_one_given_shape_binds_the_symbol_of_another_input():
    m = onepass.compile(chain(), shapes={"a": (4,)})
    assert m.specializations[0].shapes == {"a": (4,), "b": (4,)}


def test_code_comes_from_the_cache_the_second_time(cache_folder):
    first, second = (onepass.compile(conv_relu("1")).specializations[0] for _ in range(2))
    assert (first.hits, second.misses) == (0, 0) and first.misses == second.hits > 0
    off = onepass.compile(conv_relu("1"), cache=False).specializations[0]
    assert off.misses == first.misses and any("off" in note for note in off.notes)


def test_exact_switches_rewrites_off():
    assert onepass.compile(chain(), exact=True)._setup.settings.rewrites == frozenset()


def test_one_rewrite_can_be_switched_off():
    left = onepass.compile(chain(), without=["winograd"])._setup.settings.rewrites
    assert left == {"fold_batch_norm", "online_softmax"}
    with pytest.raises(onepass.OptionError, match="fold_batch_norm, flush_subnormals, winograd"):
        onepass.compile(chain(), without=["winogard"])


def elementary():
    """Functions with a subnormal result somewhere between -110 and 110."""
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N] x) => (float[N] e, float[N] s, float[N] t, float[N] f, float[N] p)
        { e = Exp(x)  s = Sigmoid(x)  t = Tanh(x)  f = Erf(x)  p = Softmax<axis=0>(x) }""")


def test_subnormals_are_flushed_only_when_allowed_and_saved_models_keep_that(tmp_path):
    x = np.linspace(-110, 110, 4096, dtype=np.float32)
    exact, flushing = (onepass.compile(elementary(), allow=names) for names in ((), ["flush_subnormals"]))
    flushing(x)
    flushing.save(tmp_path / "m.onepass")
    tiny = np.finfo(np.float32).tiny
    for model in (flushing, onepass.load(tmp_path / "m.onepass")):
        for name, kept in exact(x).items():
            flushed = model(x)[name]
            np.testing.assert_array_equal(flushed, np.where(np.abs(kept) < tiny, 0, kept))
        assert exact(x)["e"][x < -88].any() and not model(x)["e"][x < -88].any()


def test_rewrites_are_allowed_by_name():
    assert onepass.compile(chain(), exact=True, allow=["winograd"])._setup.settings.rewrites == {"winograd"}
    with pytest.raises(onepass.OptionError, match="fold_batch_norm, flush_subnormals, winograd"):
        onepass.compile(chain(), allow=["flush"])
    with pytest.raises(onepass.OptionError, match="both"):
        onepass.compile(chain(), allow=["winograd"], without=["winograd"])


@pytest.mark.parametrize(("call", "text"), [
    (lambda m, x: m(), "takes 2 inputs, not 0"),
    (lambda m, x: m(x), "no array for b"),
    (lambda m, x: m(x, x, x), "takes 2 inputs, not 3"),
    (lambda m, x: m(x, c=x), "input 'c' does not exist"),
    (lambda m, x: m(x, a=x), "input 'a' was given twice"),
    (lambda m, x: m(x, x.astype(np.float64)), "input 'b' has the wrong element type"),
    (lambda m, x: m(x, x[:2]), "symbol 'N' is 3 in input 'a' but 2"),
    (lambda m, x: m(x[None], x[None]), "rank"),
    (lambda m, x: m(x, [[1], [2, 3]]), "input 'b' is not an array"),
])  # fmt: skip
def test_wrong_calls_are_named_in_the_models_words(call, text):
    m = onepass.compile(chain())
    with pytest.raises(onepass.ShapeError, match=text):
        call(m, np.zeros(3, np.float32))
    assert m.specializations == []


def test_an_empty_batch_gives_the_right_empty_result():
    result = onepass.compile(conv_relu())(image(0))
    assert result["map"].shape == (0, 4, 8, 8) and result["sums"].shape == (0, 4)
    assert result["map"].dtype == np.float32


def test_nan_and_infinity_flow():
    m = onepass.compile(chain())
    a = np.float32([np.nan, np.inf, -np.inf, np.inf])
    b = np.float32([1, 1, 1, -np.inf])
    np.testing.assert_array_equal(m(a, b)["y"], np.float32([np.nan, np.inf, 0, np.nan]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fuse", ["none", "auto", "all"])
def test_batch_norm_without_variance_gives_infinities(fuse):
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        flat (float[1,2,3] x) => (float[1,2,3] y)
        <float[2] one = {1, 1}, float[2] zero = {0, 0}>
        { y = BatchNormalization<epsilon=0.0>(x, one, zero, one, zero) }""")
    x = np.array([[[0, 1, 2], [3, 1, -1]]], np.float32)
    infinity = np.float32(np.inf)
    expected = np.array([[[-infinity, np.nan, infinity], [infinity, np.nan, -infinity]]])
    np.testing.assert_array_equal(onepass.compile(model, fuse=fuse)(x)[0], expected)


def test_threads_compile_once_for_each_shape_and_get_right_results():
    m, wrong = onepass.compile(chain()), []
    barrier = threading.Barrier(8)

    def work(number):
        barrier.wait()
        for turn in range(20):
            a = np.full(1 + (number + turn) % 3, number, np.float32)
            if not np.array_equal(m(a, a)["y"], a + a):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(m.specializations) == 3


def test_explain_gives_rows_and_decisions_and_reads_well():
    m = onepass.compile(conv_relu("1"))
    found = m.explain()
    assert {row.node for row in found.rows} >= {"conv", "relu", "sum"}
    assert all(row.measured_s for row in found.rows)
    assert {d.value for d in found.decisions} >= {"image", "c", "map", "sums"}
    assert "conv" in repr(found) and "register" in repr(found)


def test_report_is_a_page(tmp_path):
    onepass.compile(chain(), shapes={"a": (64,)}).report(tmp_path / "deep" / "out.html")
    assert (tmp_path / "deep" / "out.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out.html"]


def test_importing_onepass_loads_nothing_heavy():
    code = "import sys, onepass; sys.exit(bool({'numpy', 'onnx', 'llvmlite'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert "compile" in dir(onepass)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = onepass.nothing


def test_the_given_model_is_not_changed():
    model = conv_relu("1")
    before = model.SerializeToString(deterministic=True)
    m = onepass.compile(model)
    m(image())
    assert onnx.ModelProto.SerializeToString(model, deterministic=True) == before
