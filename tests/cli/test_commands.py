"""Each command on small models: what it prints, writes and promises as JSON."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from user_models import chain, conv_relu, two_convolutions

from onepass.cli import machine as machine_command
from onepass.core.files import write_text
from onepass.cost.machine import LEVELS
from onepass.runtime.machine_cache import machine_path, machine_to_json

OPTIMIZE_KEYS = {
    "model", "machine", "threads", "unfused", "fused", "speedup", "intermediate_bytes_cut", "error",
    "compile_s", "decisions",
}  # fmt: skip
COMMANDS = ("optimize", "explain", "why", "machine", "wall", "bench", "zoo")


def test_optimize_writes_its_three_files_and_a_verdict(onepass, small, tmp_path):
    result = onepass("optimize", small(conv_relu()), "--shape", "image=2x3x8x8", "-o", tmp_path / "out")
    assert result.code == 0, result.err
    assert "Fusion makes" in result.out and "The results agree." in result.out
    assert "compiling" in result.err and "\x1b" not in result.out + result.err
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["before_after.svg", "plan.jsonl", "report.html"]
    ledger = [json.loads(line) for line in (tmp_path / "out" / "plan.jsonl").read_text().splitlines()]
    assert {entry["consumer"] for entry in ledger} >= {"conv", "relu", "sum", ""}


def test_optimize_json_has_the_promised_keys(onepass, small):
    data = onepass.json("optimize", small(conv_relu("1")), "--threads", 1)
    assert data.keys() >= OPTIMIZE_KEYS and data["threads"] == 1
    assert data["fused"].keys() == data["unfused"].keys()
    assert data["fused"].keys() >= {"min_s", "median_s", "kernels", "intermediate_bytes", "bytes"}
    assert data["fused"]["bytes"].keys() >= {"l2", "l3", "memory"}
    assert data["error"].keys() == {"max_abs", "relative_l2", "unfused_relative_l2"}
    assert data["decisions"].keys() == {"register", "cache", "memory"}
    assert data["error"]["relative_l2"] < 1e-6
    assert data["fused"]["intermediate_bytes"] < data["unfused"]["intermediate_bytes"]


def test_optimize_leaves_other_files_alone(onepass, small, tmp_path):
    folder = tmp_path / "onepass-out" / "small"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    assert onepass("optimize", small(chain()), "--shape", "a=64").code == 0
    assert (folder / "notes.txt").read_text() == "mine" and (folder / "report.html").is_file()


@pytest.mark.parametrize("mode", ["none", "all", "limit=0", "only=relu"])
def test_every_way_to_fuse(onepass, small, mode):
    data = onepass.json("optimize", small(conv_relu("1")), "--fuse", mode, "--exact")
    assert mode not in ("none", "limit=0") or data["decisions"]["register"] == 0


def test_optimize_checks_each_kernel_alone(onepass, small):
    path = small(conv_relu("1"))
    assert "kernel outputs are right" in onepass("optimize", path, "--check").out
    checks = onepass.json("optimize", path, "--check")["checks"]
    assert {row["value"] for row in checks} >= {"map", "sums"} and all(row["within"] for row in checks)


def test_explain_vector_add_names_its_intensity_and_bound(onepass):
    result = onepass("explain", "zoo:vector_add", "--shape", "a=4194304", "--shape", "b=4194304")
    assert result.code == 0 and "0.0833" in result.out and "memory" in result.out
    row = onepass.json("explain", "zoo:vector_add")["ops"][0]
    assert round(row["operations_per_byte"], 3) == 0.083 and row["bound"] == "memory"
    assert row["measured_s"] > 0 and row["share_of_bandwidth"] > 0


def test_names_cannot_steer_the_terminal(onepass, small, tmp_path):
    model = conv_relu("1")
    model.graph.node[1].name = "re\x1b[2J\x9blu\x07"
    path, words = small(model), ("re[2Jlu", "\x1b", "\x9b", "\x07")
    for command in (["explain", path], ["optimize", path, "--check"], ["why", path, "c", "map"]):
        result = onepass(*command)
        assert result.code == 0 and not any(ord(c) < 32 and c != "\n" for c in result.out + result.err)
        assert not any(word in result.out for word in words[1:])
        assert command[0] == "optimize" or words[0] in result.out
    ElementTree.parse(tmp_path / "onepass-out" / "small" / "before_after.svg")
    assert json.dumps(onepass.json("explain", path)).isascii()
    model.graph.node[1].op_type = "Foo"
    assert "\x1b" not in onepass("explain", small(model)).err


def test_subnormal_numbers_are_told_until_they_are_flushed(onepass, small):
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]> net (float[64] x) => (float[64] y)
        <float[64] w = {0}> { [few] t = Mul(x, w) [more] y = Add(t, x) }""")
    weights = np.where(np.arange(64) % 4, 1, 1e-39).astype(np.float32)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
    path = small(model)
    found = onepass.json("explain", path)["subnormals"]
    assert found["weights"] == {"w": [16, 64]} and 0 < found["outputs"]["few"][0] <= 16
    assert found["kept_s"] > 0 and found["flushed_s"] > 0
    assert "25 % of 'w'" in onepass("explain", path).out
    assert "25 % of 'w'" in onepass("optimize", path, "-o", "out").out
    assert "flush_subnormals" in Path("out", "report.html").read_text()
    allowed = ("--allow", "flush_subnormals")
    assert onepass.json("explain", path, *allowed)["subnormals"] is None
    assert "Subnormal numbers, with" not in onepass("optimize", path, "-o", "out", *allowed).out
    assert "are zero, as operands" in Path("out", "report.html").read_text()
    assert onepass.json("optimize", small(conv_relu("1")))["subnormals"] is None


def test_explain_one_node(onepass, small):
    path = small(conv_relu("1"))
    data = onepass.json("explain", path, "--node", "relu")
    assert data["node"] == "relu"
    assert {d["home"] for d in data["decisions"]} >= {"register"}
    assert "predicted" in onepass("explain", path, "--node", "relu").out
    assert "closest: 'relu'" in onepass("explain", path, "--node", "rellu").err


def test_why_is_a_sentence_with_numbers(onepass, small):
    path = small(conv_relu("1"))
    result = onepass("why", path, "conv", "relu")
    assert result.code == 0 and "stays in registers" in result.out and "predicted" in result.out
    data = onepass.json("why", path, "conv", "relu")
    assert data["decisions"][0]["home"] == "register" and data["answer"] in result.out


def test_why_of_one_node_tells_each_of_its_edges(onepass, small):
    path = small(two_convolutions())
    on, off = onepass("why", path, "two").out, onepass("why", path, "two", "--without", "winograd").out
    assert on.count("F(4x4)") == 2 and on.count("stays in cache") == 2 and "the largest input" in on
    assert "'a'" in on and "'b'" in on and "'a'" in off and "F(4x4)" not in off
    data = onepass.json("why", path, "two")
    assert data["b"] is None and len(data["answer"].splitlines()) == len(data["decisions"]) == 4
    assert "#tiles" not in onepass("why", path, "one", "two").out


def test_explain_and_the_report_show_what_winograd_keeps_in_cache(onepass, small):
    path = small(two_convolutions())
    for words in ([], ["--node", "two"]):
        assert onepass("explain", path, *words).out.count("off by at most") >= 2
    values = {d["value"] for d in onepass.json("explain", path)["decisions"]}
    assert values >= {"one#tiles", "two#tiles", "two#products"}
    assert onepass.json("optimize", path, "-o", "out")["decisions"]["cache"] == 4
    assert "two#tiles" in Path("out/report.html").read_text("utf-8")


def test_machine_shows_roofs_and_says_when_they_cannot_be_kept(onepass):
    data = onepass.json("machine")
    assert {roof["what"] for roof in data["roofs"]} >= {"float32 fma", "launch", *LEVELS}
    assert all(roof["date"] and roof["method"] for roof in data["roofs"]) and data["kept_in"] is None
    assert "Not kept" in onepass("machine", "--fresh").out
    write_text(machine_path(), machine_to_json(machine_command.measure_machine()))
    assert "Kept in" in onepass("machine").out


def test_wall_is_a_table_and_a_chart(onepass, tmp_path):
    result = onepass("wall", "--svg", tmp_path / "wall.svg")
    assert result.code == 0 and "gpu matrix" in result.out and "This machine" in result.out
    assert (tmp_path / "wall.svg").read_text().startswith("<svg")
    data = onepass.json("wall")
    assert data["growth_per_two_years"].keys() == {"cpu", "gpu vector", "gpu matrix"}


def test_zoo_lists_and_exports(onepass, tmp_path):
    assert "resnet50" in onepass("zoo", "list").out
    assert {"resnet50", "bert_base"} <= {row["name"] for row in onepass.json("zoo", "list")["models"]}
    file = tmp_path / "chain.onnx"
    assert onepass.json("zoo", "export", "row_chain", file)["bytes"] == file.stat().st_size
    onnx.checker.check_model(onnx.load(file))
    # An exported model still has its shapes.
    assert onepass("why", file, "/gelu/Gelu", "/act/Sigmoid").code == 0


def test_bench_names_the_winner(onepass, small):
    pytest.importorskip("onnxruntime")
    data = onepass.json("bench", small(conv_relu("1")), "--against", "onnxruntime")
    ours, peer = data["entrants"]
    assert (ours["name"], peer["name"]) == ("onepass", "onnxruntime") and peer["relative_l2"] < 1e-6
    assert "onnxruntime" in data["verdict"]


def test_bench_says_what_is_not_installed(onepass, small, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    result = onepass("bench", small(conv_relu("1")), "--against", "openvino")
    assert result.code == 0 and "pip install 'onepass[peers]'" in result.out
    assert "nothing to compare" in result.out


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), ("zoo", "list"), ("zoo", "export")])
def test_help_teaches_with_an_example(onepass, command):
    result = onepass(*command, "--help")
    assert result.code == 0 and (command == ("zoo",) or "onepass " + " ".join(command) in result.out)


def test_version(onepass):
    assert onepass("--version").out.startswith("onepass ")


def test_the_package_runs_as_the_command():
    run = subprocess.run([sys.executable, "-m", "onepass", "zoo", "list"], capture_output=True, text=True)
    assert run.returncode == 0 and "resnet50" in run.stdout
