"""The GPU benchmark without a GPU: its judgements, its workloads, and a whole run in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpu
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def plan(**regions):
    """A plan of regions by name, each with its nodes and predicted seconds."""
    return SimpleNamespace(regions=[
        SimpleNamespace(id=at, name=name, nodes=[SimpleNamespace(name=node) for node in nodes])
        for at, (name, nodes) in enumerate(regions.items())
    ])  # fmt: skip


def trace(*seconds):
    return SimpleNamespace(seconds_of_region=lambda: dict(enumerate(seconds)))


def test_a_verdict_holds_where_the_fused_kernel_is_no_slower_than_its_nodes():
    unfused, before = plan(a="a", b="b", c="c", d="d"), trace(1.0, 1.0, 2.0, 3.0)
    good = gpu.verdicts(unfused, before, plan(ab="ab", cd="cd"), trace(1.5, 5.1))
    assert good == {"fused": 2, "held": 2, "wrong": {}}
    bad = gpu.verdicts(unfused, before, plan(ab="ab", c="c", d="d"), trace(3.0, 2.0, 3.0))
    assert bad == {"fused": 1, "held": 0, "wrong": {"ab": 1.5}}


@pytest.mark.parametrize(("dtype", "fused", "unfused", "right"), [
    ("float32", 1e-6, 1e-6, True), ("float32", 2e-5, 1e-5, False), ("float32", 9e-6, 1e-6, False),
    ("float16", 1e-3, 1e-3, True), ("float16", float("inf"), 1e-3, False), ("float16", 0.1, 0.1, False),
])  # fmt: skip
def test_numbers_are_judged_by_the_rounding_of_their_type(dtype, fused, unfused, right):
    assert gpu.is_right({"fused": fused, "unfused": unfused}, dtype) == right


def test_errors_are_those_of_the_worst_output():
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 5.0])
    assert gpu.relative_l2([a, a], [a.double(), b.double()]) == pytest.approx(10**0.5 / 5)
    assert gpu.relative_l2([torch.tensor([float("nan"), 1.0])], [b.double()]) == float("inf")


@pytest.mark.parametrize("workload", gpu.WORKLOADS, ids=lambda workload: workload.name)
def test_each_workload_has_known_shapes_and_ops_that_pytorch_has(workload):
    size = workload.size if workload.tiny is None else workload.tiny
    graph = import_onnx(load_onnx(workload.build(size)), {})
    gpu.check_ops(graph)
    assert graph.inputs and (workload.tiny is not None or graph.types[graph.inputs[0]].shape[0] == size)


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert "no GPU is present" in capsys.readouterr().out


def test_a_tiny_run_in_the_interpreter(tmp_path):
    output = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, Path(gpu.__file__), "--tiny", "--only", "layer norm chain", "--target", "cuda:sm_90",
         "--output", output],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "layer norm chain" in done.stdout and "WRONG" not in done.stdout
    found = json.loads(output.read_text())
    assert found.keys() >= {"gpu", "device", "versions", "roofs", "rows", "notes", "seconds"}
    assert found["roofs"].keys() == {"memory", "float16 fma", "float32 fma", "launch"}
    (row,) = found["rows"]
    assert row["right"] and row["times"].keys() == {"eager", "unfused", "fused"}
    assert row["kernels"]["fused"] == row["verdicts"]["fused"] == 1 and row["kernels"]["unfused"] == 3
    assert 0 < row["predicted_s"]["fused"] < row["predicted_s"]["unfused"] and row["bytes"] > 0
