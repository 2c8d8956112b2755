"""Mistakes on the command line: exit codes, four lines or one JSON object, nothing lost."""

import shlex
import subprocess
import sys

import pytest
from user_models import chain, conv_relu, cyclic, unsupported, with_external_weights

from onepass.cli import models as models_command
from onepass.cli.common import parse_shape
from onepass.core.errors import InternalError

MAIN = "import sys; from onepass.cli import main; sys.argv[0] = 'onepass'; main()"


@pytest.mark.parametrize(("words", "text"), [
    (["zoo:resnet5"], "did you mean zoo:resnet50?"),
    (["nowhere.onnx"], "does not exist"),
    (["small.onnx"], "give the sizes, for example --shape image=1x3x8x8"),
    (["small.onnx", "--shape", "image=1x3x8x8", "--threads", "0"], "cannot run with 0 threads"),
    (["small.onnx", "--shape", "image=-1x3x8x8"], "a size cannot be negative"),
    (["small.onnx", "--shape", "1x3x8x8"], "is not a shape"),
    (["small.onnx", "--shape", "image=1000000000000x3x8x8"], "1 TiB"),
    (["small.onnx", "--shape", "image=100000000x3x8x8"], "nothing was allocated"),
    (["small.onnx", "--shape", "image=1x4x8x8"], "dimension 1 is declared as 3"),
    (["small.onnx", "--shape", "picture=1x3x8x8"], "the model has no input 'picture'"),
    (["small.onnx", "--shape", "image=1x3x8x8", "--fuse", "maybe"], "not a way to fuse"),
    (["broken.onnx"], "not an ONNX model, or it is damaged"),
    (["unsupported.onnx"], "'bar_node'"),
    (["cyclic.onnx", "--shape", "a=3", "--shape", "b=3"], "the graph has a cycle"),
    (["short.onnx"], "too short"),
])  # fmt: skip
def test_a_user_error_is_short_and_exits_with_2(onepass, small, tmp_path, words, text):
    small(conv_relu()), small(cyclic(), "cyclic.onnx"), small(unsupported(), "unsupported.onnx")
    (tmp_path / "broken.onnx").write_bytes(conv_relu().SerializeToString()[:99])
    with_external_weights(tmp_path).rename(tmp_path / "short.onnx")
    (tmp_path / "weights.bin").write_bytes(b"x")
    result = onepass("explain", *words)
    assert result.code == 2 and result.out == "" and text in result.err and "Traceback" not in result.err
    error = onepass.json("explain", *words, code=2)["error"]
    assert error.keys() == {"what", "where", "why", "remedy"} and text in " ".join(error.values())


@pytest.mark.parametrize("words", [
    ["why", "zoo:row_chain", "/gelu/Gelu", "/act/Sigmo"],
    ["why", "zoo:row_chain", "/gelu/Gel"],
    ["zoo", "export", "x", "y"],
])  # fmt: skip
def test_unknown_names(onepass, words):
    assert onepass(*words).code == 2


@pytest.mark.parametrize("option", ["--without", "--allow"])
def test_an_unknown_rewrite_is_refused_before_any_work(onepass, small, option):
    result = onepass("explain", small(chain()), option, "winogard")
    assert result.code == 2 and "the rewrites are fold_batch_norm, flush_subnormals, winograd" in result.err
    assert "reading" not in result.err


def test_an_unknown_peer_is_refused_before_any_work(onepass, small):
    result = onepass("bench", small(chain()), "--shape", "a=8", "--against", "tvm")
    assert result.code == 2 and "use some of onnxruntime, openvino, torch" in result.err
    assert "compiling" not in result.err


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(onepass, small, tmp_path):
    path = small(conv_relu("1"))
    result = onepass("optimize", path, "-o", path / "out")
    assert result.code == 2 and "cannot be written" in result.err and "compiling" not in result.err
    assert onepass("zoo", "export", "row_chain", path / "x.onnx").code == 2
    assert onepass("wall", "--svg", path / "x.svg").code == 2


@pytest.mark.parametrize(("fault", "step"), [(InternalError("plan", "an invariant broke"), "plan"),
                                             (ZeroDivisionError("division"), "unknown")])  # fmt: skip
def test_a_bug_exits_with_3_and_says_what_to_send(onepass, small, monkeypatch, fault, step):
    def broken(*_):
        raise fault

    monkeypatch.setattr(models_command, "run_fusion", broken)
    path = small(conv_relu("1"))
    result = onepass("optimize", path)
    assert result.code == 3 and "Please send" in result.err and "Traceback" in result.err
    assert onepass.json("optimize", path, code=3)["error"]["step"] == step


def test_an_interrupt_exits_with_130(onepass, small, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(models_command, "run_fusion", interrupted)
    assert onepass("optimize", small(conv_relu("1"))).code == 130


def test_metadata_that_is_damaged(onepass, small):
    model = chain()
    model.metadata_props.add(key="onepass.shape.a", value="12xx")
    assert "metadata are damaged" in onepass("explain", small(model)).err


def test_a_reader_that_goes_away_is_no_error():
    writer = subprocess.Popen(
        [sys.executable, "-c", MAIN, "zoo", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer.stdout.close()
    assert writer.stderr.read() == b"" and writer.wait() == 1
    writer.stderr.close()


@pytest.mark.parametrize(("target", "code", "message"), [
    (">&-", 0, ""), (">&- 2>&-", 0, ""), (">/dev/full", 2, "standard output cannot be written"),
])  # fmt: skip
def test_standard_output_that_is_closed_or_full(target, code, message):
    command = shlex.join([sys.executable, "-c", MAIN, "zoo", "list"]) + target
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, message in done.stderr) == (code, True) and "Traceback" not in done.stderr


def test_standard_output_is_one_object_in_a_process_too():
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "zoo", "export", "none", "x", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout.startswith('{"error"') and done.stdout.count("\n") == 1


@pytest.mark.parametrize(("text", "expected"), [
    ("x=1x3", ("x", (1, 3))), ("a=b=7", ("a=b", (7,))), ("x=", ("x", ())),
    ("input.1=0x2", ("input.1", (0, 2))),
])  # fmt: skip
def test_shapes_are_parsed(text, expected):
    assert parse_shape(text) == expected
