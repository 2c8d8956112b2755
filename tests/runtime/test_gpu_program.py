"""Programs for a GPU, in Triton's interpreter against float64; and what they say where no GPU is."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import tile_kernels as tiles
from interpreted import Case, case_of, interpret

from onepass.core.dtypes import BF16, BOOL, F16, F32
from onepass.core.errors import OptionError, ShapeError, UserError
from onepass.core.tensor import TensorType
from onepass.core.tolerance import compare
from onepass.runtime.gpu_host import check_memory, find_device
from onepass.runtime.gpu_program import GpuProgram, load_functions
from onepass.runtime.program import Launch

RANDOM = np.random.default_rng(0)
torch = pytest.importorskip("torch")
pytest.importorskip("triton")
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is present")


def normal(dtype, *shape):
    return RANDOM.standard_normal(shape).astype(dtype.numpy)


def wide(array):
    return array.astype(np.float64)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def by_hand(dtype):
    """Each kernel, its inputs, what it computes in float64, and the length of its sums."""
    a, b = normal(dtype, 1000), normal(dtype, 1000)
    yield tiles.add_relu(dtype, 1000), {"a": a, "b": b}, np.maximum(wide(a) + wide(b), 0), 1
    x = normal(dtype, 5, 77)
    yield tiles.softmax(dtype, 5, 77, 128), {"x": x}, softmax(wide(x)), 77
    a, b, bias = normal(dtype, 50, 70), normal(dtype, 70, 37), normal(dtype, 37)
    expected = wide(a) @ wide(b) + wide(bias)
    yield tiles.matmul_bias(dtype, 50, 37, 70), {"a": a, "b": b, "bias": bias}, expected, 70


SPECIAL = np.float32([np.nan, np.inf, -np.inf, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e-40, 3.39e38, 3.4e38])
HALF = 8 * 16 * 4


def rounding():
    """float32 to bfloat16."""
    text = "    i = tl.arange(0, 8)\n    tl.store(y + i, tl.load(x + i).to(tl.bfloat16))\n"
    return tiles.tile_kernel("rounding", text, {"x": (F32, (8,)), "y": (BF16, (8,))}, (1,))


def negation():
    """y = not x, bools as bytes."""
    text = "    i = tl.arange(0, 8)\n    tl.store(y + i, (tl.load(x + i) == 0).to(tl.int8))\n"
    return tiles.tile_kernel("negation", text, {"x": (BOOL, (8,)), "y": (BOOL, (8,))}, (1,))


def chain():
    """softmax(max(a + b, 0) as rows) through the arena, b a constant, into both halves of an output."""
    kind = TensorType(F32, (8, 16))
    return Case(
        {"first": tiles.add_relu(F32, 128), "second": tiles.softmax(F32, 8, 16, 16)},
        [Launch(0, "first", ("x", "b", "t")), Launch(1, "second", ("t", "y:1")),
         Launch(2, "second", ("t", "y:0"))],
        {"x": ("input", 0), "b": ("constant", "weights"), "t": ("arena", 256), "y:0": ("output", 0),
         "y:1": ("output", 0, HALF)},
        {"x": (kind, normal(F32, 8, 16))}, {"y": TensorType(F32, (2, 8, 16))},
        {"weights": normal(F32, 128)}, 1024,
    )  # fmt: skip


FLAGS = np.array([0, 1, 1, 0, 0, 1, 0, 1], bool)


def all_cases():
    """What is run, by label: the case, its output in float64, and the length of its sums."""
    found = {
        f"{kernel.name} {dtype}": (case_of(kernel, arrays), expected, length)
        for dtype in (F32, F16, BF16) for kernel, arrays, expected, length in by_hand(dtype)
    }  # fmt: skip
    found["negation"] = case_of(negation(), {"x": FLAGS}), ~FLAGS, 1
    case = chain()
    x, b = wide(case.inputs["x"][1]), wide(case.constants["weights"])
    y = softmax(np.maximum(x + b.reshape(8, 16), 0))
    found["chain"] = case, np.stack([y, y]), 16
    return found


CASES = all_cases()


def program_of(case, device="cuda"):
    inputs = [(name, kind) for name, (kind, _) in case.inputs.items()]
    return GpuProgram(case.kernels, case.launches, case.slots, case.constants, inputs,
                      list(case.outputs.items()), case.arena_bytes, device)  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The outputs of all cases, and the rounded SPECIAL, from one interpreter."""
    cases = [*(case for case, _, _ in CASES.values()), case_of(rounding(), {"x": SPECIAL})]
    return dict(zip([*CASES, "rounding"], interpret(cases, tmp_path_factory.mktemp("tiles")), strict=True))


@pytest.mark.parametrize("label", CASES)
def test_interpreted(results, label):
    (y,) = results[label].values()
    case, expected, length = CASES[label]
    assert y.dtype == case.outputs["y"].dtype.numpy
    comparison = compare(y, expected, length)
    assert comparison.within, comparison


def test_bfloat16_rounds_to_nearest_even(results):
    np.testing.assert_array_equal(wide(results["rounding"]["y"]), wide(SPECIAL.astype(BF16.numpy)))


@pytest.mark.parametrize(("text", "words"), [
    ("tl.store(y + i, tl.load(x + i) + tl.load(x + i))", "arithmetic on bfloat16"),
    ("tl.store(y + 1 + i, tl.load(x + i))", "out of bounds"),
    ("tl.store(x + i, tl.load(y + i))", "an input was overwritten"),
])  # fmt: skip
def test_the_interpreter_notices(tmp_path, text, words):
    params = dict.fromkeys("xy", (BF16, (8,)))
    kernel = tiles.tile_kernel("wrong", f"    i = tl.arange(0, 8)\n    {text}\n", params, (1,))
    with pytest.raises(AssertionError, match=words) as caught:
        interpret([case_of(kernel, {"x": np.ones(8, BF16.numpy)})], tmp_path)
    assert "in case 0: wrong" in str(caught.value)


@on_a_gpu
@pytest.mark.parametrize("label", CASES)
def test_on_a_gpu(label):
    case, expected, length = CASES[label]
    program = program_of(case)
    given = [array for _, array in case.inputs.values()]
    zeros = [np.zeros_like(array) for array in given]
    for arrays in (given, zeros, given):  # the graph is recorded at the first and replayed at the others
        (y,) = program.run(arrays)
    comparison = compare(y, expected, length)
    assert comparison.within, comparison
    trace = program.trace(given, 3)
    assert [launch.kernel for launch in trace.launches] == [launch.symbol for launch in case.launches]
    assert all(launch.min_s > 0 for launch in trace.launches) and trace.min_s > 0


def test_repeated_kernels_are_one_function_and_all_can_be_read(tmp_path):
    bodies = {"one": "total", "two": "sum_of_two", "three": "total"}
    kernels = {
        name: tiles.tile_kernel(name, f"    {total} = {len(name)}\n", {}, (1,))
        for name, total in bodies.items()
    }
    found = load_functions(kernels, tmp_path)
    assert found["one"] is found["two"] is not found["three"]
    assert all((tmp_path / f"{name}.py").read_text() == kernel.source for name, kernel in kernels.items())


@pytest.fixture
def doubling(monkeypatch):
    """y = 2 x in two launches of plain Python over an arena, on the CPU; and what happened, in words."""
    monkeypatch.setattr("onepass.runtime.gpu_program.find_device", lambda torch, name: torch.device("cpu"))
    kind, log = TensorType(F32, (2, 3)), []
    launches = [Launch(0, "one", ()), Launch(1, "two", ())]
    kernels = {name: tiles.tile_kernel(name, "    pass\n", {}, (1,)) for name in ("one", "two")}
    program = GpuProgram(kernels, launches, {}, {}, [("x", kind)], [("y", kind)], 24)

    def call(name, source, target):
        def run():
            log.append(name)
            target.view(torch.float32).copy_(source.view(torch.float32) * (2 if name == "two" else 1))

        return run

    (x,), (y,), between = program._in, program._out, program._arena
    program._calls = [call("one", x, between), call("two", between, y)]
    return program, log


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_numpy_in_numpy_out_and_tensors_in_tensors_out(doubling):
    program, _ = doubling
    (y,) = program.run([X.T.copy().T])
    assert type(y) is np.ndarray
    (z,) = program.run([torch.from_numpy(X + 1)])
    assert torch.is_tensor(z) and z.dtype == torch.float32
    np.testing.assert_array_equal(y, 2 * X)  # left alone by the second run
    np.testing.assert_array_equal(z.numpy(), 2 * X + 2)
    np.testing.assert_array_equal(program.peek(0, (2, 3), np.dtype(np.float32)), X + 1)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_wrong_inputs_are_named(doubling, convert):
    program, _ = doubling
    mistakes = (X[:1], "expected float32[2,3], got float32[1,3]"), (X.astype(int), "got int64[2,3]")
    for wrong, words in mistakes:
        with pytest.raises(ShapeError) as caught:
            program.run([convert(wrong)])
        assert "input 'x'" in str(caught.value) and words in str(caught.value)
    with pytest.raises(ShapeError, match="takes 1 inputs, not 2"):
        program.run([convert(X), convert(X)])


def test_trace_has_every_launch(doubling):
    program, log = doubling
    trace = program.trace([X], 3)
    assert [(launch.region, launch.kernel) for launch in trace.launches] == [(0, "one"), (1, "two")]
    assert trace.runs == 3 and log == ["one", "two"] * 8


class Cuda:
    """What a program asks of `torch.cuda`, noted in `log`."""

    def __init__(self, log):
        self.log = log
        self.OutOfMemoryError = torch.cuda.OutOfMemoryError

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.log.append(name)
            return Cuda(self.log)

        return call

    @contextmanager
    def device(self, device):
        yield

    @contextmanager
    def graph(self, graph):
        self.log.append("record")
        yield
        self.log.append("recorded")

    def elapsed_time(self, other):
        return 2.0


def test_launches_are_recorded_once_and_replayed(doubling, monkeypatch):
    program, log = doubling
    monkeypatch.setattr(program, "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(program, "_torch", SimpleNamespace(**{**vars(torch), "cuda": Cuda(log)}))
    program.run([X])
    assert log == ["one", "two", "synchronize", "CUDAGraph", "record", "one", "two", "recorded", "replay",
                   "current_stream", "record_event"]  # fmt: skip
    log.clear()
    program.run([X])
    assert log == ["current_stream", "wait_event", "replay", "current_stream", "record_event"]
    trace = program.trace([X], 2)
    assert trace.min_s == 2e-3 and [launch.median_s for launch in trace.launches] == [2e-3, 2e-3]


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(UserError, match="triton is not available") as caught:
        program_of(CASES["chain"][0])
    assert "pip install 'onepass[cuda]'" in str(caught.value)


def gpus(count=1, capability=(9, 0), free=1000, ):
    """A PyTorch that finds `count` GPUs."""
    cuda = SimpleNamespace(
        is_available=lambda: count > 0, device_count=lambda: count, get_device_name=lambda _: "Tesla",
        get_device_capability=lambda _: capability, mem_get_info=lambda _: (free, 5000),
        memory_reserved=lambda _: 300, memory_allocated=lambda _: 100,
    )  # fmt: skip
    return SimpleNamespace(cuda=cuda, device=torch.device, version=SimpleNamespace(cuda=None, hip=None))


@pytest.mark.parametrize(("host", "name", "words"), [
    (gpus(0), "cuda", "no GPU is present"),
    (gpus(0), "cuda", "install PyTorch for CUDA"),
    (gpus(2), "cuda:2", "cuda:0 to cuda:1"),
    (gpus(capability=(7, 5)), "cuda", "Tesla has compute capability 7.5"),
    (gpus(), "cpu", "cannot run on 'cpu'"),
    (gpus(), "gpu", "'gpu' is not a device"),
])  # fmt: skip
def test_devices_that_cannot_be_used(host, name, words, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(OptionError) as caught:
        find_device(host, name)
    assert words in str(caught.value) and "remedy: " in str(caught.value)
    assert str(find_device(gpus(2), "cuda:1")) == "cuda:1"


def test_too_little_memory_is_told_in_bytes():
    device = torch.device("cuda", 0)
    check_memory(gpus(), device, 1200)
    with pytest.raises(UserError) as caught:
        check_memory(gpus(), device, 1201)
    assert "needs 1,201 bytes" in str(caught.value) and "1,200 of its 5,000" in str(caught.value)
