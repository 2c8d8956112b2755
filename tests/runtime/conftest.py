"""Fixtures of the runtime's tests."""

from __future__ import annotations

import pytest
from native import Code


@pytest.fixture(scope="session")
def linked() -> Code:
    """The hand-written kernels, for 1000 elements."""
    return Code(1000)
