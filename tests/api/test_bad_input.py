"""Each mistake of a user is one clear error, and nothing is lost."""

import numpy as np
import onnx
import pytest
from user_models import chain, conv_relu, cyclic, unsupported, with_external_weights

import onepass


def refused(model, **options):
    with pytest.raises(onepass.UserError) as caught:
        onepass.compile(model, **options)
    return str(caught.value)


def test_a_truncated_file(tmp_path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(conv_relu().SerializeToString()[:300])
    assert "not an ONNX model, or it is damaged" in refused(path)


@pytest.mark.parametrize("content", [b"", b"not a model", bytes(4096), b"\x89PNG\r\n" * 99])
def test_a_file_that_is_no_model(tmp_path, content):
    path = tmp_path / "photo.onnx"
    path.write_bytes(content)
    assert "photo.onnx" in refused(path)


def test_a_missing_file():
    assert "does not exist" in refused("no/such/model.onnx")
    assert "cannot be read" in refused("n" * 5000)


def test_unsupported_ops_are_listed_together_even_where_sizes_are_open():
    text = refused(unsupported())
    assert "Foo" in text and "'act'" in text and "Bar" in text and "'bar_node'" in text


def test_an_unsupported_dtype():
    model = chain()
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E5M2
    assert "float8e5m2" in refused(model)


def test_bfloat16_is_for_gpus():
    model = chain()
    for value in model.graph.input:
        value.type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16
    text = refused(model, shapes={"a": (3,), "b": (3,)})
    assert "'a' is bfloat16[3]" in text and "float32" in text


def test_a_cycle():
    text = refused(cyclic(), shapes={"a": (3,), "b": (3,)})
    assert "cycle" in text and "'plus'" in text and "'act'" in text


@pytest.mark.parametrize(("shape", "text"), [
    ((-1, 3, 8, 8), "negative"),
    ((1 << 50, 3, 8, 8), "1 TiB"),
    ((1 << 27, 3, 8, 8), "nothing was allocated"),
    ((1, 4, 8, 8), "dimension 1 is declared as 3"),
    ((3, 8, 8), "rank"),
])  # fmt: skip
def test_impossible_shapes(shape, text):
    assert text in refused(conv_relu(), shapes={"image": shape})


def test_a_shape_for_an_input_that_is_not_there():
    assert "its inputs are image: float32[N,3,8,8]" in refused(conv_relu(), shapes={"picture": (1, 3, 8, 8)})


@pytest.mark.parametrize(("options", "text"), [
    ({"threads": 0}, "cannot run with 0 threads"),
    ({"threads": -3}, "cannot run with -3 threads"),
    ({"threads": 2.5}, "whole number"),
    ({"shapes": {"image": (1, 3, 8.5, 8)}}, "are not shapes"),
    ({"shapes": {"image": 4}}, "are not shapes"),
    ({"fuse": "limit=²"}, "'limit=²' is not a way to fuse"),
    ({"fuse": "some"}, "'some' is not a way to fuse"),
    ({"fuse": "only=rellu", "shapes": {"image": (1, 3, 8, 8)}}, "closest: 'relu'"),
])  # fmt: skip
def test_impossible_options(options, text):
    assert text in refused(conv_relu(), **options)


def test_external_weights_work(tmp_path):
    m = onepass.compile(with_external_weights(tmp_path))
    x = np.ones((1, 3, 8, 8), np.float32)
    np.testing.assert_array_equal(m(x)["map"], onepass.compile(conv_relu("1"))(x)["map"])


def test_external_weights_that_are_missing(tmp_path):
    path = with_external_weights(tmp_path)
    (tmp_path / "weights.bin").unlink()
    assert "'weights.bin' is missing" in refused(path)


def test_external_weights_that_are_too_short(tmp_path):
    path = with_external_weights(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(100))
    assert "too short" in refused(path)


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "link.bin"])
def test_external_weights_outside_the_folder(tmp_path, location):
    inner = tmp_path / "inner"
    inner.mkdir()
    path = with_external_weights(inner, location=location)
    (inner / "weights.bin").rename(tmp_path / "weights.bin")
    (inner / "link.bin").symlink_to(tmp_path / "weights.bin")
    assert "outside the model's folder" in refused(path)


def test_a_cache_that_cannot_be_written_is_only_a_loss_of_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    m = onepass.compile(conv_relu("1"))
    assert m(np.ones((1, 3, 8, 8), np.float32))["map"].shape == (1, 4, 8, 8)
    told = [note for note in m.specializations[0].notes if "cannot write" in note]
    assert len(told) == 1


def test_a_full_disk_is_only_a_loss_of_time(monkeypatch, cache_folder):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("onepass.targets.cache.os.replace", full)
    m = onepass.compile(conv_relu("1"))
    assert any("No space left" in note for note in m.specializations[0].notes)
    assert not list(cache_folder.glob("*.obj")) and not list(cache_folder.glob("*.part"))


def test_a_corrupt_cache_entry_is_compiled_again_and_told(cache_folder):
    onepass.compile(conv_relu("1"))
    entries = list(cache_folder.glob("*.obj"))
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-7])
    record = onepass.compile(conv_relu("1")).specializations[0]
    assert record.misses == len(entries) and any("checksum" in note for note in record.notes)
    assert onepass.compile(conv_relu("1")).specializations[0].notes == ()
