"""What a call of a model returns: its outputs by position and by name."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable
from typing import Any

from onepass.ops.opdef import Array


class Results(tuple[Array, ...]):
    """The outputs as a tuple in the model's order; `results["name"]` and `dict(results)` go by name."""

    names: tuple[str, ...]

    def __new__(cls, names: Iterable[str], arrays: Iterable[Array]) -> Results:
        """`names` and `arrays` of equal count, in the model's order."""
        made = super().__new__(cls, arrays)
        made.names = tuple(names)
        return made

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self.names:
            raise KeyError(f"no output '{key}': the model's outputs are {', '.join(self.names)}")
        return super().__getitem__(self.names.index(key))

    def __contains__(self, key: object) -> bool:
        return key in self.names

    def keys(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self.names

    def items(self) -> ItemsView[str, Array]:
        """Pairs of name and array."""
        return dict(zip(self.names, self, strict=True)).items()

    def __getnewargs__(self) -> tuple[tuple[str, ...], tuple[Array, ...]]:
        return self.names, tuple(self)

    def __repr__(self) -> str:
        each = (f"{name}: {array.dtype}[{','.join(map(str, array.shape))}]" for name, array in self.items())
        return f"Results({', '.join(each)})"
