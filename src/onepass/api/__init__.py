"""Layer 12: the Python interface; `onepass.compile`, `onepass.load` and what they return."""

from onepass.api.model import Model, Specialization, compile, load
from onepass.api.results import Results

__all__ = ["Model", "Results", "Specialization", "compile", "load"]
