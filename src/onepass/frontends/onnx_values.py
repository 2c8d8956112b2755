"""Converters for ops that are values rather than work: constants, shapes, ranges, aliases."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from onepass.core.dtypes import BOOL, DType, dtype_of_numpy
from onepass.frontends.onnx_site import FOLD_ELEMENTS, Site
from onepass.frontends.onnx_tensors import check_shape
from onepass.ops.opdef import Array


def convert_constant(site: Site) -> None:
    """Constant: a tensor, a number or a list of numbers."""
    given = {name: value for name, value in site.attrs.items() if value is not None}
    if isinstance(value := given.get("value"), TensorProto):
        _define(site, site.tensor(value))
        return
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        if (number := given.get(name, given.get(f"{name}s"))) is not None:
            _define(site, np.asarray(number, dtype))
            return
    raise site.error("the constant is a string or a sparse tensor, which is not supported")


def _define(site: Site, array: Array) -> None:
    """Gives the node's first output its elements."""
    site.building.define(site.node.output[0], array)


def _filled(site: Site, value: Array, shape: tuple[int, ...]) -> None:
    """The first output is one value all over; it takes no memory until it is used."""
    check_shape(shape, dtype_of_numpy(value.dtype), site.where)
    _define(site, np.broadcast_to(value, shape))


def convert_constant_of_shape(site: Site) -> None:
    """ConstantOfShape: zeros (float32) unless a one-element tensor is given."""
    shape = site.ints(0, "shape") or ()
    value = site.attrs.get("value")
    filling = site.tensor(value).reshape(-1) if isinstance(value, TensorProto) else np.zeros(1, np.float32)
    if filling.size != 1:
        raise site.error("the value must have one element")
    _filled(site, filling[0], shape)


def convert_shape(site: Site) -> None:
    """Shape: the sizes as int64, possibly a part of them."""
    shape = site.shape()
    end = site.attrs.get("end")
    start = site.int_attr("start")
    _define(site, np.asarray(shape[slice(start, end if isinstance(end, int) else None)], np.int64))


def convert_size(site: Site) -> None:
    """Size: the number of elements."""
    _define(site, np.asarray(math.prod(site.shape()), np.int64))


def convert_range(site: Site) -> None:
    """Range: from start up to, not including, limit."""
    parts = [site.array(position, name) for position, name in enumerate(("start", "limit", "delta"))]
    start, limit, delta = (part.reshape(-1)[0] if part is not None else np.int64(0) for part in parts)
    if delta == 0:
        raise site.error("delta is 0")
    count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    if count > FOLD_ELEMENTS * 64:
        raise site.error(f"a range of {count} elements is too long")
    _define(site, (start + np.arange(count, dtype=start.dtype) * delta).astype(start.dtype))


def convert_non_zero(site: Site) -> None:
    """NonZero of a known tensor: how many there are would otherwise depend on data."""
    array = site.array(0, "tensor")
    if array is None:
        raise site.error("the input is missing")
    _define(site, np.asarray(np.nonzero(np.atleast_1d(array)), np.int64))


def convert_identity(site: Site) -> None:
    """Identity: another name of its input."""
    site.alias(site.inputs[0])


def convert_dropout(site: Site) -> None:
    """Dropout in inference: its input; the mask is all true."""
    training = site.array(2, "training_mode") if site.opset >= 12 else None
    if training is not None and training.any():
        raise site.error("training mode is not supported", remedy="export the model for inference")
    site.alias(site.inputs[0])
    if len(site.outputs) > 1:
        dtype = BOOL if site.opset >= 10 else site.type(0).dtype
        name = site.constant(np.broadcast_to(np.ones((), dtype.numpy), site.shape()), "mask")
        site.alias(name, 1)


def convert_cast(site: Site) -> None:
    """Cast: to the same type it is another name of its input."""
    _cast(site, site.dtype_attr("to"))


def convert_cast_like(site: Site) -> None:
    """CastLike: a cast to the second input's type."""
    _cast(site, site.type(1).dtype)


def _cast(site: Site, dtype: DType) -> None:
    if dtype == site.type(0).dtype:
        site.alias(site.inputs[0])
    else:
        site.emit("cast", site.inputs[:1], {"to": dtype.name})


def convert_clip_6(site: Site) -> None:
    """Clip before opset 11: the limits are attributes, absent ones the largest float32."""
    limit = float(np.finfo(np.float32).max)
    names = []
    for name, absent in (("min", -limit), ("max", limit)):
        value = site.attrs.get(name)
        given = isinstance(value, float) and value != absent
        dtype = site.type(0).dtype
        names.append(site.constant(np.asarray(value, dtype.numpy), name) if given else "")
    while names and not names[-1]:
        names.pop()
    site.emit("clip", (*site.inputs[:1], *names), {})
