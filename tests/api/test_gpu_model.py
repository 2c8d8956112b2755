"""`onepass.compile` for a GPU: what works where it is not, and calls in Triton's interpreter."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from user_models import conv_relu

import onepass
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.graph.interpret import evaluate
from onepass.runtime import gpu_host

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
IN_THE_INTERPRETER = """
import sys
import numpy as np, torch, onepass
m = onepass.compile(sys.argv[1], target="cuda:sm_90", dtype=sys.argv[3] or None)
x = np.load(sys.argv[2])
with torch.inference_mode():
    m(torch.from_numpy(x))
results = m(x)
assert results.keys() == ("map", "sums") and all(isinstance(r, np.ndarray) for r in results)
tensors = m(image=torch.from_numpy(x))
assert all(torch.is_tensor(t) and (t.numpy() == r).all() for t, r in zip(tensors, results))
assert len(m.specializations) == 1
try:
    m(torch.from_numpy(x).double())
except onepass.ShapeError as error:
    assert "wrong" in str(error) and "float64" in str(error), error
else:
    raise AssertionError("float64 was taken")
np.savez(sys.argv[2], **dict(results.items()))
"""


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("dtype", ["", "float16"])
@pytest.mark.parametrize("batch", ["1", "N"])
def test_a_call_takes_arrays_and_tensors(tmp_path, dtype, batch):
    model = conv_relu(batch)
    path, file = tmp_path / "m.onnx", tmp_path / "x.npy"
    path.write_bytes(model.SerializeToString())
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), np.float32).astype(dtype or "float32")
    np.save(file, x)
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_INTERPRETER, path, file, dtype],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    graph = import_onnx(model, {"image": x.shape})
    exact = evaluate(graph, {"image": x.astype(np.float32)}, np.float64)
    with np.load(f"{file}.npz" if os.path.exists(f"{file}.npz") else file) as found:
        for name in ("map", "sums"):
            assert found[name].dtype == x.dtype and compare(found[name], exact[name], 64).within


def test_without_that_gpu_a_model_is_explained_and_not_called(no_gpu):
    m = onepass.compile(conv_relu("1"), target="cuda:sm_90", dtype="float16")
    assert str(m.inputs[0]) == "image: float16[1,3,8,8]"
    found = m.explain()
    assert found.plan is m.plan and all(row.spill_bytes == 0 for row in found.rows)
    assert "2 kernels for NVIDIA H100 SXM" in repr(found) and "register" in repr(found)
    with pytest.raises(onepass.OptionError, match="no GPU is present") as raised:
        m(np.zeros((1, 3, 8, 8), np.float16))
    assert "leave the target out" in raised.value.remedy
    with pytest.raises(onepass.ShapeError, match="wrong element type"):
        onepass.compile(conv_relu(), target="cuda:sm_90", dtype="float16")(np.zeros((1, 3, 8, 8), np.float32))


def test_what_a_model_for_a_gpu_cannot_do(no_gpu, tmp_path):
    m = onepass.compile(conv_relu("1"), target="cuda:sm_90")
    with pytest.raises(onepass.UserError, match="cannot be saved"):
        m.save(tmp_path / "m.onepass")
    with pytest.raises(onepass.UserError, match="no report"):
        m.report(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("options", "text"), [
    ({"target": "cuda"}, "no GPU is present"), ({"target": "cuda:sm_75"}, "unknown GPU"),
    ({"dtype": "float16"}, "for GPUs only"), ({"target": "cuda:sm_90", "dtype": "float8"}, "float8"),
    ({"target": "cuda:sm_90", "threads": 2}, "threads"), ({"target": "cuda:sm_90", "tune": True}, "tune"),
])  # fmt: skip
def test_options_are_checked(no_gpu, options, text):
    with pytest.raises(onepass.OptionError, match=text):
        onepass.compile(conv_relu("1"), **options)


def test_repeated_compilations_find_their_kernels(cache_folder):
    first, second = (onepass.compile(conv_relu("1"), target="cuda:sm_80") for _ in range(2))
    assert first.specializations[0].misses == second.specializations[0].hits == 2
    assert list(cache_folder.glob("*.tile"))


def test_a_call_for_another_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(gpu_host, "present_gpu", lambda: "cuda:sm_80")
    with pytest.raises(onepass.OptionError, match="the GPU that is present is cuda:sm_80"):
        onepass.compile(conv_relu("1"), target="cuda:sm_90")(np.zeros((1, 3, 8, 8), np.float32))


NAMES = ("m", "n", "k", "acc", "exp", "p0", "lambda", "larger", "i_inside", "tl")
UNLUCKY = """
import sys
import numpy as np, onepass
np.save(sys.argv[2], onepass.compile(sys.argv[1], target="cuda:sm_90")(np.load(sys.argv[2]))[0])
"""


def test_names_of_the_users_that_kernels_use_themselves(tmp_path):
    ops = ("MatMul(x, w)", "Relu({})", "Tanh({})", "Sigmoid({})", "Exp({})", "Add({}, {})",
           "Softmax({})", "Neg({})", "Sqrt(x)", "Add({}, {})")  # fmt: skip
    lines, last = [], "x"
    for name, op in zip(NAMES, ops, strict=True):
        lines.append(f"{name} = {op.format(last, 'larger' if name == 'tl' else 'w')}")
        last = name
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[24,24] x) => (float[24,24] tl) '
        f"<float[24,24] w = {{{','.join(['0.1'] * 576)}}}> {{ {' '.join(lines)} }}"
    )
    path, file = tmp_path / "m.onnx", tmp_path / "x.npy"
    path.write_bytes(model.SerializeToString())
    x = np.random.default_rng(0).random((24, 24), np.float32)
    np.save(file, x)
    done = subprocess.run(
        [sys.executable, "-c", UNLUCKY, path, file], env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    exact = evaluate(import_onnx(model), {"x": x}, np.float64)["tl"]
    assert compare(np.load(file), exact, 24).within
