"""onepass: neural networks made fast by operator fusion, with a reason for every decision.

`compile(model)` gives a `Model` to call with numpy arrays; `load(path)` reads back one that was saved.
The names are loaded at first use, so that importing onepass costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onepass.api import Model, Results, Specialization, compile, load
    from onepass.core.errors import (
        InternalError,
        ModelError,
        OnepassError,
        OptionError,
        ShapeError,
        UserError,
    )

__all__ = [
    "InternalError",
    "Model",
    "ModelError",
    "OnepassError",
    "OptionError",
    "Results",
    "ShapeError",
    "Specialization",
    "UserError",
    "compile",
    "load",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'onepass' has no attribute '{name}'")
    home = "onepass.core.errors" if name.endswith("Error") else "onepass.api"
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
