"""Converters for convolution, pooling and resizing: padding and sizes become explicit numbers."""

from __future__ import annotations

import numpy as np

from onepass.core.tensor import Shape
from onepass.frontends.onnx_site import Converter, RawAttr, Site


def convert_conv(site: Site) -> None:
    """Conv: kernel from the weights, padding explicit."""
    kernel = site.shape(1)[2:]
    site.emit("conv", site.inputs, {**_window(site, kernel), "group": site.int_attr("group", 1)})


def convert_pool(op: str) -> Converter:
    """A converter for MaxPool and AveragePool: padding explicit, row-major storage order only."""

    def convert(site: Site) -> None:
        if site.int_attr("storage_order"):
            raise site.error("storage_order 1 (column-major) is not supported")
        kernel = site.ints_attr("kernel_shape")
        if kernel is None:
            raise site.error("attribute 'kernel_shape' is missing")
        attrs = {key: value for key, value in site.attrs.items() if key not in ("auto_pad", "storage_order")}
        site.emit(op, site.inputs, {**attrs, **_window(site, kernel)})

    return convert


def _steps(site: Site, kernel: Shape) -> tuple[Shape, Shape]:
    """Strides and dilations, complete and checked, as is the kernel."""
    rank = len(kernel)
    declared = site.ints_attr("kernel_shape")
    if declared is not None and declared != kernel:
        raise site.error(f"kernel_shape {list(declared)} contradicts the weights' {list(kernel)}")
    if len(site.shape()) != 2 + rank:
        raise site.error(f"a kernel of rank {rank} does not fit an input of shape {list(site.shape())}")
    strides = site.ints_attr("strides") or (1,) * rank
    dilations = site.ints_attr("dilations") or (1,) * rank
    if len(strides) != rank or len(dilations) != rank:
        raise site.error(f"strides or dilations do not have rank {rank}")
    if min((*strides, *dilations, *kernel), default=1) < 1:
        raise site.error("strides, dilations and kernel sizes must be positive")
    return strides, dilations


def _window(site: Site, kernel: Shape) -> dict[str, RawAttr]:
    """`kernel_shape`, `strides`, `dilations` and `pads`, complete and checked."""
    strides, dilations = _steps(site, kernel)
    pads = _pads(site, site.shape()[2:], kernel, strides, dilations)
    if len(pads) != 2 * len(kernel) or min(pads, default=0) < 0:
        raise site.error(f"pads {list(pads)} are negative or do not have rank {len(kernel)}")
    return {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}


def _pads(site: Site, spatial: Shape, kernel: Shape, strides: Shape, dilations: Shape) -> tuple[int, ...]:
    """Padding (all begins, then all ends); SAME gives ceil(size / stride) outputs, the odd one as named."""
    mode = site.attrs.get("auto_pad") or "NOTSET"
    if mode == "NOTSET":
        return site.ints_attr("pads") or (0,) * (2 * len(kernel))
    if mode == "VALID":
        return (0,) * (2 * len(kernel))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise site.error(f"auto_pad '{mode}' is not known")
    begins, ends = [], []
    for size, taps, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + dilation * (taps - 1) + 1 - size, 0)
        small, large = total // 2, total - total // 2
        begins.append(large if mode == "SAME_LOWER" else small)
        ends.append(small if mode == "SAME_LOWER" else large)
    return (*begins, *ends)


def convert_conv_transpose(site: Site) -> None:
    """ConvTranspose: `output_shape` and `auto_pad` become pads; output padding explicit."""
    kernel, spatial = site.shape(1)[2:], site.shape()[2:]
    rank = len(kernel)
    strides, dilations = _steps(site, kernel)
    extra = site.ints_attr("output_padding") or (0,) * rank
    pads = site.ints_attr("pads") or (0,) * (2 * rank)
    mode = site.attrs.get("auto_pad") or "NOTSET"
    wanted = site.ints_attr("output_shape")
    if len(extra) != rank or len(pads) != 2 * rank:
        raise site.error(f"output_padding or pads do not have rank {rank}")
    if wanted is not None and len(wanted) > rank:
        wanted = wanted[-rank:]
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(size * stride for size, stride in zip(spatial, strides, strict=True))
    if wanted is not None:
        begins, ends = [], []
        for axis, size in enumerate(spatial):
            full = strides[axis] * (size - 1) + extra[axis] + dilations[axis] * (kernel[axis] - 1) + 1
            total = full - wanted[axis]
            if total < 0:
                # The output is larger than what the windows reach: the rest is padding of the output.
                extra = (*extra[:axis], extra[axis] - total, *extra[axis + 1 :])
                total = 0
            small, large = total // 2, total - total // 2
            begins.append(small if mode == "SAME_UPPER" else large)
            ends.append(large if mode == "SAME_UPPER" else small)
        pads = (*begins, *ends)
    elif mode == "VALID":
        pads = (0,) * (2 * rank)
    attrs: dict[str, RawAttr] = {
        "kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads,
        "output_padding": extra, "group": site.int_attr("group", 1),
    }  # fmt: skip
    site.emit("conv_transpose", site.inputs, attrs)


def convert_resize(site: Site) -> None:
    """Resize since opset 11: scales or sizes as inputs, possibly for some axes only."""
    shape = site.shape()
    rank = len(shape)
    axes = tuple(site.axis(axis, rank) for axis in site.ints_attr("axes") or range(rank))
    if site.int_attr("antialias"):
        raise site.error("antialias 1 is not supported")
    if site.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise site.error("coordinate_transformation_mode 'tf_crop_and_resize' is not supported")
    if (site.attrs.get("keep_aspect_ratio_policy") or "stretch") != "stretch":
        raise site.error(
            "keep_aspect_ratio_policy is not supported", remedy="give the sizes that it leads to"
        )
    scales, sizes = site.array(2, "scales"), site.ints(3, "sizes")
    is_scaled = scales is not None and scales.size > 0
    given = tuple(scales.reshape(-1).tolist()) if scales is not None and is_scaled else sizes
    if not given:
        raise site.error("neither scales nor sizes are given")
    if len(given) != len(axes):
        raise site.error(f"{len(given)} {'scales' if is_scaled else 'sizes'} were given for {len(axes)} axes")
    full = [1.0] * rank if is_scaled else list(shape)
    for axis, value in zip(axes, given, strict=True):
        full[axis] = value
    if is_scaled:
        _emit_resize(site, tuple(full), None)
    else:
        ratios = (size / extent if extent else 1.0 for size, extent in zip(full, shape, strict=True))
        _emit_resize(site, tuple(ratios), tuple(map(int, full)))


def convert_resize_10(site: Site) -> None:
    """Resize of opset 10 and Upsample: coordinates asymmetric, nearest rounds down."""
    scales = site.attrs.get("scales")
    array = None if isinstance(scales, tuple) else site.array(1, "scales")
    values = scales if isinstance(scales, tuple) else () if array is None else tuple(array.reshape(-1))
    if len(values) != len(site.shape()):
        raise site.error(f"{len(values)} scales were given for rank {len(site.shape())}")
    site.attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    _emit_resize(site, tuple(float(value) for value in values), None)


def _emit_resize(site: Site, scales: tuple[float, ...], sizes: Shape | None) -> None:
    """Adds a resize with complete scales and sizes."""
    mode = site.attrs.get("mode") or "nearest"
    if any(not scale > 0 for scale in scales) and sizes is None:
        raise site.error(f"scales {list(scales)} must be positive")
    if sizes is None:
        # floor(size * scale) in float32, as ONNX's shape inference has it: 10 * 0.7 is 7.
        sizes = tuple(
            int(np.float32(extent) * np.float32(scale))
            for extent, scale in zip(site.shape(), scales, strict=True)
        )
    attrs: dict[str, RawAttr] = {
        "sizes": sizes,
        "scales": scales,
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": site.attrs.get("coordinate_transformation_mode") or "half_pixel",
        "nearest_mode": site.attrs.get("nearest_mode") or "round_prefer_floor",
        "cubic_coeff_a": site.attrs.get("cubic_coeff_a", -0.75),
        "exclude_outside": site.int_attr("exclude_outside"),
    }
    site.emit("resize", site.inputs[:1], attrs)
