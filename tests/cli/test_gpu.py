"""Models compiled for a GPU that need not be there: what is shown, written and refused."""

import ast
import importlib.metadata
import json
from types import SimpleNamespace

import pytest
from onnx import parser
from user_models import conv_relu

from onepass.cost.gpu import GPUS
from onepass.runtime import gpu_host
from onepass.targets.triton import compile as triton_compile

pytest.importorskip("triton")
H100 = ("--target", "cuda:sm_90")
KERNEL_KEYS = {
    "name", "form", "registers", "spill_bytes", "shared_bytes", "occupancy", "blocks_per_sm", "tensor_cores",
    "predicted_s", "bytes",
}  # fmt: skip


def torch_with(capability=None, hip=None, built="12.8"):
    """What of PyTorch tells of the GPU, where there is one of `capability`."""
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    return SimpleNamespace(
        device=lambda kind, index=None: SimpleNamespace(type=kind, index=index),
        version=SimpleNamespace(cuda=None if hip else built, hip=hip),
        cuda=SimpleNamespace(
            is_available=lambda: capability is not None, device_count=lambda: 1,
            get_device_capability=lambda device: capability, get_device_name=lambda device: "Some GPU",
            get_device_properties=lambda device: properties,
        ),
    )  # fmt: skip


def with_torch(monkeypatch, **options):
    monkeypatch.setattr(gpu_host, "require", lambda name: torch_with(**options))


def test_explain_shows_each_kernel_as_compiled(onepass, small):
    result = onepass("explain", small(conv_relu("1")), *H100, "--dtype", "float16")
    assert result.code == 0, result.err
    assert "conv … relu (contraction)" in result.out and "2 kernels for NVIDIA H100 SXM" in result.out
    assert "compiling 2 kernels for cuda:sm_90" in result.err and "Every kernel fits the GPU" in result.out
    assert "producer and consumer share one loop nest" in result.out and "none spills" in result.out


def test_explain_json_has_the_promised_keys(onepass, small):
    path = small(conv_relu("1"))
    data = onepass.json("explain", path, *H100, "--dtype", "float16")
    assert data["target"] == "cuda:sm_90" and data["dtype"] == "float16"
    for kernel in data["kernels"]:
        assert kernel.keys() >= KERNEL_KEYS
        assert kernel["registers"] > 0 and kernel["spill_bytes"] == 0 and 0 < kernel["occupancy"] <= 1
        assert kernel["blocks_per_sm"] > 0 and kernel["predicted_s"] > 0
        assert kernel["steps"][-1]["resources"]["registers"] == kernel["registers"]
    product = next(kernel for kernel in data["kernels"] if "conv" in kernel["nodes"])
    assert product["tensor_cores"] and product["matrix_instruction"]
    # What the CPU's JSON has too.
    assert data.keys() >= {"model", "ops", "predicted_s", "measured_s", "decisions"}
    assert data["measured_s"] is None
    assert data["predicted_s"] == pytest.approx(sum(kernel["predicted_s"] for kernel in data["kernels"]))
    assert all(roof["method"] and roof["date"] for roof in data["machine"]["roofs"])
    inside = [d for d in data["decisions"] if d["home"] == "register"]
    assert inside and all(d["fits"] for d in inside)
    # float32 products have no tensor cores.
    assert not any(k["tensor_cores"] for k in onepass.json("explain", path, *H100)["kernels"])


def test_kernels_that_are_alike_share_a_line(onepass, small):
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[64,64] x) => (float[64,64] z) '
        "{ y = MatMul(x, x) z = MatMul(y, y) }"
    )
    out = onepass("explain", small(model), *H100).out
    assert "(contraction), 2 times" in out and "2 kernels for" in out
    assert out.count("contraction") == 1


def test_explain_one_node(onepass, small):
    path = small(conv_relu("1"))
    out = onepass("explain", path, *H100, "--node", "relu").out
    assert "registers of a thread" in out and "occupancy" in out and "limited by" in out
    data = onepass.json("explain", path, *H100, "--node", "relu")
    assert data["kernel"]["nodes"] == ["conv", "relu"] and data["decisions"]
    assert "closest: 'relu'" in onepass("explain", path, *H100, "--node", "rellu").err


def test_why_names_registers_and_occupancy(onepass, small):
    path = small(conv_relu("1"))
    told = onepass("why", path, "conv", "relu", *H100).out
    assert "stays in registers" in told and "0 bytes spilled" in told and "occupancy" in told
    fits = onepass.json("why", path, "conv", "relu", *H100)["decisions"][0]["fits"]
    assert f"{fits[-1]['resources']['registers']} registers" in told


@pytest.mark.parametrize("target", GPUS)
def test_optimize_without_a_gpu_does_all_but_run(onepass, small, tmp_path, monkeypatch, target):
    with_torch(monkeypatch)
    path, folder = small(conv_relu("1")), tmp_path / "out"
    result = onepass("optimize", path, "--target", target, "-o", folder)
    assert result.code == 0, result.err
    assert "is predicted to make" in result.out and "time, predicted" in result.out
    assert "Nothing was run: no GPU is present" in result.out and "results agree" not in result.out
    assert not (folder / "report.html").exists() and (folder / "before_after.svg").is_file()
    ledger = [json.loads(line) for line in (folder / "plan.jsonl").read_text().splitlines()]
    assert any(entry["fits"] for entry in ledger)
    data = onepass.json("optimize", path, "--target", target, "-o", folder)
    assert data["error"] is None and data["fused"]["min_s"] is None and "no GPU" in data["not_run"]
    assert data["speedup"] == pytest.approx(data["unfused"]["predicted_s"] / data["fused"]["predicted_s"])
    assert data["fused"]["kernels"] < data["unfused"]["kernels"]
    assert data["fused"]["intermediate_bytes"] < data["unfused"]["intermediate_bytes"]
    # One readable source a kernel, which names the user's nodes.
    sources = sorted(file.name for file in (folder / "kernels").iterdir())
    assert sources == sorted(kernel["file"] for kernel in data["kernels"])
    for kernel in data["kernels"]:
        module = ast.parse((folder / "kernels" / kernel["file"]).read_text())
        text = ast.get_docstring(module.body[-1])
        assert all(node in text for node in kernel["nodes"])


@pytest.mark.parametrize("options", [("--fuse", "none"), ("--exact",), ("--without", "fold_batch_norm")])
def test_options_that_make_sense_on_a_gpu(onepass, small, options):
    data = onepass.json("explain", small(conv_relu("1")), *H100, *options)
    assert ("none" in options) == all(len(kernel["nodes"]) == 1 for kernel in data["kernels"])


def test_the_gpu_that_is_present(onepass, small, monkeypatch):
    path = small(conv_relu("1"))
    with_torch(monkeypatch, capability=(8, 0))
    assert onepass.json("explain", path, "--target", "cuda")["target"] == "cuda:sm_80"
    with_torch(monkeypatch, capability=(9, 4), hip="6.4")
    assert onepass.json("explain", path, "--target", "cuda")["target"] == "hip:gfx942"


def test_machine_tells_each_figure_of_a_gpu_with_its_source(onepass):
    result = onepass("machine", *H100)
    assert result.code == 0 and "132 SMs" in result.out and "datasheet" in result.out
    data = onepass.json("machine", *H100)
    assert data["sms"] == 132 and all(roof["method"] for roof in data["roofs"])
    assert onepass("machine", "--target", "cuda:sm_75").code == 2


def refused(result, *texts):
    """It says what, why and what to do, and exits with 2."""
    assert result.code == 2 and result.out == "" and "Traceback" not in result.err
    assert "remedy:" in result.err and all(text in result.err for text in texts), result.err


@pytest.mark.parametrize(("options", "texts"), [
    (("--target", "cuda:sm_75"), ("unknown GPU 'cuda:sm_75'", "cuda:sm_90 (NVIDIA H100 SXM)")),
    (("--target", "tpu"), ("unknown GPU 'tpu'",)),
    ((*H100, "--dtype", "int8"), ("cannot be compiled in 'int8'", "choose float16, bfloat16")),
    ((*H100, "--dtype", "float64"), ("cannot be compiled in 'float64'",)),
    (("--dtype", "float16"), ("for GPUs only", "choose a target")),
    ((*H100, "--threads", "2"), ("'threads' is of no use", "or the target")),
    ((*H100, "--tune"), ("'tune' is of no use",)),
    ((*H100, "--allow", "flush_subnormals"), ("'flush_subnormals' is of no use",)),
    ((*H100, "--fuse", "maybe"), ("not a way to fuse",)),
])  # fmt: skip
def test_options_that_make_no_sense_are_refused_before_any_work(onepass, small, options, texts):
    result = onepass("explain", small(conv_relu("1")), *options)
    refused(result, *texts)
    assert "reading" not in result.err


def test_without_a_gpu(onepass, small, monkeypatch):
    path = small(conv_relu("1"))
    with_torch(monkeypatch)
    refused(onepass("optimize", path, "--target", "cuda"), "no GPU is present", "leave the target out")
    with_torch(monkeypatch, built=None)
    refused(onepass("explain", path, "--target", "cuda"), "made for CPUs alone", "install PyTorch for CUDA")
    with_torch(monkeypatch, capability=(7, 5))
    refused(onepass("explain", path, "--target", "cuda"), "compute capability 7.5", "8.0 and later")
    with_torch(monkeypatch, capability=(8, 9))
    refused(onepass("explain", path, "--target", "cuda"), "unknown GPU 'cuda:sm_89'")
    assert onepass("explain", path).code == 0


def test_a_gpu_that_is_another_one_runs_nothing(onepass, small, monkeypatch):
    with_torch(monkeypatch, capability=(8, 0))
    data = onepass.json("optimize", small(conv_relu("1")), *H100)
    assert data["error"] is None and "present is cuda:sm_80" in data["not_run"]


def test_without_pytorch_or_triton(onepass, small, monkeypatch):
    path = small(conv_relu("1"))

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    def no_module(name):
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(gpu_host.importlib, "import_module", no_module)
    refused(onepass("explain", path, "--target", "cuda"), "torch is not available", "onepass[cuda]")
    monkeypatch.undo()
    monkeypatch.setattr(triton_compile.importlib.metadata, "version", missing)
    refused(onepass("explain", path, *H100), "Triton", "not installed", "pip install 'onepass[cuda]'")
    monkeypatch.undo()


def test_what_a_gpu_has_no_code_for(onepass, small):
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (double[64] x) => (double[64] y) { y = Tanh(x) }'
    )
    refused(onepass("explain", small(model), *H100), "tanh of float64 has no GPU code", "where: node")
