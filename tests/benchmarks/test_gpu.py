"""The GPU benchmark: its rows from small workloads in the interpreter, its verdicts, and no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpu

ROOT = Path(__file__).parents[2]
ROW = {
    "workload", "within", "errors", "min_s", "median_s", "missing", "kernels", "unfused_kernels",
    "launch_share", "bandwidth_share", "prediction_error", "predicted_s", "retiled", "held", "held_of",
}  # fmt: skip


def interpreted(output, *given):
    paths = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "src")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    command = [sys.executable, str(Path(__file__).with_name("gpu_process.py")), str(output), *given]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_rows_of_small_workloads(tmp_path):
    done = interpreted(tmp_path / "found.json", "4")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["gpu"] == "interpreted" and set(found["roofs"]) == {
        "memory_bytes_per_s", "float16_flops_per_s", "float32_flops_per_s", "launch_s",
    }  # fmt: skip
    assert [row["workload"].split()[0] for row in found["rows"]] == list(gpu.CHAINS)
    for row in found["rows"]:
        assert set(row) == ROW and row["within"]
        assert set(row["errors"]) == set(row["min_s"]) == {"onepass", "unfused", "torch"}
        assert row["missing"] == {"torch.compile": "no compiler here"}
        assert 0 <= row["held"] <= row["held_of"] <= row["kernels"] <= row["unfused_kernels"]
    assert found["rows"][3]["kernels"] == 1 and found["rows"][3]["unfused_kernels"] > 1
    assert "conv_bn_relu" in done.stdout and "WRONG" not in done.stdout


def test_wrong_results_are_told(tmp_path):
    done = interpreted(tmp_path / "found.json", "1", "--wrong")
    assert done.returncode == 1 and "WRONG" in done.stdout, done.stderr
    assert not json.loads((tmp_path / "found.json").read_text())["rows"][0]["within"]


def test_without_a_gpu(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a GPU is present")
    assert gpu.main(["--output", str(tmp_path / "none.json")]) == 2
    assert "no GPU is present" in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()
