"""Every test here has a cache folder of its own, and roofs that need no measuring."""

import pytest
from user_models import quick_machine

from onepass.compare import setup


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ONEPASS_CACHE_DIR", str(folder))
    monkeypatch.setattr(setup, "measure_machine", quick_machine)
    return folder
