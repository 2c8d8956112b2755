"""The command line run in this process, with a cache folder of its own and roofs that need no measuring."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner
from user_models import quick_machine

from onepass.cli import machine as machine_command
from onepass.cli.app import app
from onepass.compare import fusion, race, setup
from onepass.compare.timing import interleave


@pytest.fixture(autouse=True)
def quick(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(setup, "measure_machine", quick_machine)
    monkeypatch.setattr(machine_command, "measure_machine", quick_machine)
    for module in (fusion, race):
        monkeypatch.setattr(module, "interleave", lambda runs, _, *rest: interleave(runs, 0.0, *rest))


@pytest.fixture
def onepass(tmp_path, monkeypatch):
    """`onepass("zoo", "list")` gives code, out and err; `.json(...)` the one object on standard output."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        result = CliRunner().invoke(app, [str(word) for word in words])
        return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)

    def run_json(*words, code=0):
        result = run(*words, "--json")
        assert result.code == code, result.err
        return json.loads(result.out)

    run.json = run_json
    return run


@pytest.fixture
def small(tmp_path):
    """A function that writes a model to a file."""

    def write(model, name="small.onnx"):
        path = tmp_path / name
        path.write_bytes(model.SerializeToString())
        return path

    return write
