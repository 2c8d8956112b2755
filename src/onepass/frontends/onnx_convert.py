"""Converters for the ops whose parameters or versions differ from ours, and the plain one for all others."""

from __future__ import annotations

import math

from onepass.core.tensor import Shape
from onepass.frontends.onnx_layout import axes_of
from onepass.frontends.onnx_site import Converter, RawAttr, Site


def plain(op: str) -> Converter:
    """A converter for an op that differs in spelling only."""

    def convert(site: Site) -> None:
        site.emit(op, site.inputs, site.attrs)

    return convert


def convert_batch_normalization(site: Site) -> None:
    """BatchNormalization in inference, per channel."""
    training = site.int_attr("training_mode") or len(site.outputs) > 1
    if training:
        raise site.error("training mode is not supported", remedy="export the model for inference")
    if site.opset < 9 and site.attrs.get("spatial") == 0:
        raise site.error("spatial 0 (statistics for each place) is not supported")
    site.emit("batch_normalization", site.inputs, {"epsilon": site.attrs["epsilon"]}, site.outputs[:1])


def reduction(op: str) -> Converter:
    """A converter for a reduction: axes as attribute or input, non-negative and sorted, None for all."""

    def convert(site: Site) -> None:
        given = axes_of(site)
        rank = len(site.shape())
        axes = tuple(sorted({site.axis(axis, rank) for axis in given})) if given else None
        noop = site.int_attr("noop_with_empty_axes")
        attrs: dict[str, RawAttr] = {
            "axes": axes,
            "keepdims": site.int_attr("keepdims", 1),
            "noop_with_empty_axes": noop,
        }
        site.emit(op, site.inputs[:1], attrs)

    return convert


def flattened_softmax(op: str) -> Converter:
    """A converter for softmax before opset 13: over all axes from `axis` on, as if they were one."""

    def convert(site: Site) -> None:
        shape = site.shape()
        axis = site.axis(site.int_attr("axis", 1), len(shape)) if shape else 0
        if axis >= len(shape) - 1:
            site.emit(op, site.inputs, {"axis": axis})
            return
        matrix: Shape = (math.prod(shape[:axis]), math.prod(shape[axis:]))
        rows = site.emit_between("reshape", site.inputs[:1], {"shape": matrix}, "rows")
        result = site.emit_between(op, (rows,), {"axis": 1}, "result")
        site.emit("reshape", (result,), {"shape": shape})

    return convert


def convert_group_normalization_18(site: Site) -> None:
    """GroupNormalization of opset 18: scale and bias a group; since 21 a channel."""
    channels, groups = site.shape()[1], site.int_attr("num_groups")
    if groups < 1 or channels % groups:
        raise site.error(f"{groups} groups do not divide {channels} channels")
    vectors = []
    for position, label in ((1, "scale"), (2, "bias")):
        column = site.emit_between(
            "reshape", site.inputs[position : position + 1], {"shape": (groups, 1)}, label
        )
        wide = site.emit_between("expand", (column,), {"shape": (groups, channels // groups)}, label)
        vectors.append(site.emit_between("reshape", (wide,), {"shape": (channels,)}, label))
    site.emit("group_normalization", (site.inputs[0], *vectors), site.attrs)


def convert_variadic(op: str) -> Converter:
    """A converter for Sum, Max, Min and Mean; of one input they are another name of it."""

    def convert(site: Site) -> None:
        if len(site.inputs) == 1:
            site.alias(site.inputs[0])
        else:
            site.emit(op, site.inputs, {})

    return convert
