"""Saved models: they run as they did, are whole, and damage is refused."""

import dataclasses
import json
import zipfile

import numpy as np
import onnx
import pytest
from user_models import conv_relu, with_external_weights

import onepass
from onepass.api import bundle
from onepass.targets.llvm.description import describe_host


def image(batch):
    return np.random.default_rng(batch).standard_normal((batch, 3, 8, 8), np.float32)


@pytest.fixture
def saved(tmp_path):
    m = onepass.compile(conv_relu())
    m(image(1)), m(image(2))
    m.save(tmp_path / "m.onepass")
    return m, tmp_path / "m.onepass"


def test_a_loaded_model_gives_the_same_bits_without_compiling(saved, monkeypatch, tmp_path):
    m, path = saved
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "other"))
    back = onepass.load(path)
    assert [record.misses for record in back.specializations] == [0, 0]
    assert [record.shapes for record in back.specializations] == [r.shapes for r in m.specializations]
    for batch in (1, 2, 3):
        for name, array in m(image(batch)).items():
            np.testing.assert_array_equal(back(image(batch))[name], array)


def test_it_holds_the_weights_and_no_pickle(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    m = onepass.compile(with_external_weights(folder))
    m.save(tmp_path / "m.onepass")
    expected = m(image(1))["sums"]
    (folder / "weights.bin").rename(tmp_path / "gone")
    np.testing.assert_array_equal(onepass.load(tmp_path / "m.onepass")(image(1))["sums"], expected)
    with zipfile.ZipFile(tmp_path / "m.onepass") as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"manifest.json", "model.onnx", "objects"}


def test_weights_of_any_size_are_kept(tmp_path):
    """Weights above a page lie elsewhere than small ones when a model is read from a file."""
    weights = np.arange(3000, dtype=np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> large (float[3000] x) => (float[3000] y) { y = Add(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model.graph.initializer[0].data_location = onnx.TensorProto.DEFAULT
    onnx.save(model, tmp_path / "m.onnx")
    onepass.compile(tmp_path / "m.onnx").save(tmp_path / "m.onepass")
    back = onepass.load(tmp_path / "m.onepass")
    np.testing.assert_array_equal(back(np.ones(3000, np.float32))["y"], weights + 1)


def test_on_another_processor_it_is_compiled_again_and_says_so(saved, monkeypatch, tmp_path):
    m, path = saved
    other = dataclasses.replace(describe_host(), cpu="generic")
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(bundle, "describe_host", lambda: other)
    back = onepass.load(path)
    assert all("compiled again" in record.reason for record in back.specializations)
    np.testing.assert_array_equal(back(image(1))["map"].shape, m(image(1))["map"].shape)


def test_for_another_number_of_threads_it_is_planned_again(saved):
    _, path = saved
    assert "planned again" in onepass.load(path, threads=1).specializations[0].reason


def rewritten(path, change):
    """The file with its members passed through `change(name, data)`; None drops one."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            new = change(name, data)
            if new is not None:
                archive.writestr(name, new)


def edited(key, value):
    return lambda name, data: (
        json.dumps({**json.loads(data), key: value}) if name == "manifest.json" else data
    )


@pytest.mark.parametrize("change", [
    lambda name, data: None if name == "model.onnx" else data,
    lambda name, data: None if name == "manifest.json" else data,
    lambda name, data: b"{" if name == "manifest.json" else data,
    lambda name, data: b"[]" if name == "manifest.json" else data,
    edited("format", 99), edited("settings", {}), edited("target", 3), edited("machine", {}),
    edited("specializations", [{"image": "x"}]),
])  # fmt: skip
def test_a_file_with_wrong_content_is_refused(saved, change):
    _, path = saved
    rewritten(path, change)
    with pytest.raises(onepass.ModelError, match="not a model that onepass saved, or it is damaged"):
        onepass.load(path)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\0" * 100])
def test_a_damaged_file_is_refused(saved, damage):
    _, path = saved
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(onepass.ModelError, match="damaged"):
        onepass.load(path)


def test_one_flipped_bit_is_found(saved):
    _, path = saved
    with zipfile.ZipFile(path) as archive:
        item = next(item for item in archive.infolist() if item.filename.startswith("objects/"))
    data = bytearray(path.read_bytes())
    data[item.header_offset + 200] ^= 1
    path.write_bytes(data)
    with pytest.raises(onepass.ModelError, match="damaged"):
        onepass.load(path)


def test_what_could_unpack_to_more_than_its_size_is_refused(saved):
    _, path = saved
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("objects/" + "0" * 64, bytes(1 << 20))
    with pytest.raises(onepass.ModelError, match="does not write"):
        onepass.load(path)


def test_a_missing_file_and_a_place_that_cannot_be_written(saved, tmp_path):
    m, path = saved
    with pytest.raises(onepass.ModelError, match="cannot be read"):
        onepass.load(tmp_path / "none.onepass")
    with pytest.raises(onepass.UserError, match="cannot be written"):
        m.save(path / "inside" / "m.onepass")
    assert path.is_file()
