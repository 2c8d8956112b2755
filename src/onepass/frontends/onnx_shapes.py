"""Binding the open dimensions of declared inputs to sizes.

In: the declared inputs and the shapes that the user gave (`--shape`, or the arrays of a first call).
Out: a static type for each input; symbols mean the same size wherever they occur. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onepass.core.errors import ModelError, OptionError, ShapeError
from onepass.core.tensor import Shape, TensorType
from onepass.frontends.onnx_model import InputDescription
from onepass.frontends.onnx_tensors import check_shape


def bind_shapes(inputs: Sequence[InputDescription], shapes: Mapping[str, Shape]) -> dict[str, TensorType]:
    """The static type of each input.

    Raises `OptionError` for an unknown name or an open dimension, `ShapeError` for a contradiction.
    """
    for name in shapes:
        if name not in {item.name for item in inputs}:
            raise OptionError(
                f"the model has no input '{name}'", remedy="its inputs are " + ", ".join(map(str, inputs))
            )
    symbols: dict[str, tuple[int, str]] = {}
    for item in inputs:
        if item.name in shapes:
            _bind(item, shapes[item.name], symbols)
    types: dict[str, TensorType] = {}
    open_inputs: list[InputDescription] = []
    for item in inputs:
        sizes = shapes.get(item.name)
        if sizes is None:
            if item.dims is None or any(isinstance(dim, str) and dim not in symbols for dim in item.dims):
                open_inputs.append(item)
                continue
            sizes = tuple(symbols[dim][0] if isinstance(dim, str) else dim for dim in item.dims)
        try:
            check_shape(tuple(sizes), item.dtype, f"input '{item.name}'")
        except ModelError as error:
            raise ShapeError(error.what, where=error.where, why=error.why) from None
        types[item.name] = TensorType(item.dtype, tuple(sizes))
    if open_inputs:
        _refuse_open(open_inputs, symbols)
    return types


def _bind(item: InputDescription, shape: Shape, symbols: dict[str, tuple[int, str]]) -> None:
    """Checks a given shape against the declared one, and learns its symbols."""
    where = f"input '{item.name}'"
    if item.dims is None:
        return
    if len(shape) != len(item.dims):
        raise ShapeError(f"{item} has rank {len(item.dims)}, but shape {list(shape)} was given", where=where)
    for axis, (dim, size) in enumerate(zip(item.dims, shape, strict=True)):
        if isinstance(dim, int):
            if dim != size:
                what = f"dimension {axis} is declared as {dim}, but {size} was given ({item})"
                raise ShapeError(what, where=where)
        elif dim != "?":
            bound, origin = symbols.setdefault(dim, (size, item.name))
            if bound != size:
                what = f"symbol '{dim}' is {bound} in input '{origin}'"
                raise ShapeError(f"{what} but {size} in dimension {axis} of '{item.name}'", where=where)


def _refuse_open(items: Sequence[InputDescription], symbols: Mapping[str, tuple[int, str]]) -> None:
    """Asks for the missing shapes, with an option that is ready to type."""
    options = []
    for item in items:
        dims = item.dims if item.dims is not None else ("?",)
        sizes = [_example(dim, axis, len(dims), symbols) for axis, dim in enumerate(dims)]
        options.append(f"--shape {item.name}={'x'.join(map(str, sizes))}")
    raise OptionError(
        "some input dimensions are open: " + ", ".join(map(str, items)),
        why="code is generated for one size; none is guessed",
        remedy="give the sizes, for example " + " ".join(options),
    )


def _example(dim: int | str, axis: int, rank: int, symbols: Mapping[str, tuple[int, str]]) -> int:
    """A plausible size to show: batch 1, images 224, sequences 128."""
    if isinstance(dim, int):
        return dim
    if dim in symbols:
        return symbols[dim][0]
    if axis == 0:
        return 1
    return 224 if rank == 4 else 128
