"""ONNX's node cases for the ops whose attributes an importer resolves first, and test data."""

import numpy as np
from op_checks import onnx_cases, oracle, run, types_of

from onepass.core.tolerance import compare
from onepass.ops.opdef import OPS

rng = np.random.default_rng(7)


def normal(*shape):
    """Standard normal float32."""
    return np.asarray(rng.standard_normal(shape), np.float32)


def lowered(op, inputs, attrs=None):
    """The op's stages for these inputs."""
    return OPS[op].lower(types_of(inputs), attrs or {})


def close(actual, expected, terms=1):
    """Asserts that `actual` lies within the project's tolerance."""
    comparison = compare(actual, expected, terms)
    assert comparison.within, comparison


def same_as_reference(op, inputs, attrs=None):
    """Asserts that the stages give the reference's elements exactly (movement: no arithmetic)."""
    actual, expected = run(op, inputs, attrs), OPS[op].reference(inputs, attrs or {})
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    return actual[0]


def _padding(op, inputs, attrs, expected):
    """Explicit pads of the window ops, from `auto_pad` or `output_shape`."""
    sizes, outputs = inputs[0].shape[2:], expected.shape[2:]
    rank = len(sizes)
    kernel = attrs.get("kernel_shape") or inputs[1].shape[2:]
    strides = attrs.get("strides") or (1,) * rank
    dilations = attrs.get("dilations") or (1,) * rank
    auto = attrs.get("auto_pad", "NOTSET")
    if (auto in ("NOTSET", "VALID") and "output_shape" not in attrs) or "pads" in attrs:
        return attrs
    totals = []
    for size, output, k, stride, dilation in zip(sizes, outputs, kernel, strides, dilations, strict=True):
        span = dilation * (k - 1) + 1
        if op == "conv_transpose":
            extra = attrs.get("output_padding", (0,) * rank)[len(totals)]
            totals.append(stride * (size - 1) + span + extra - output)
        else:
            totals.append(max(0, (output - 1) * stride + span - size))
    small = [total // 2 for total in totals]
    large = [total - total // 2 for total in totals]
    # a transposed convolution whose outputs are given crops more before than after, but for SAME_UPPER
    upper = auto == "SAME_UPPER"
    return attrs | {"pads": (*small, *large) if upper else (*large, *small)}


def _moved(op, inputs, attrs, expected):
    """Constant inputs as attributes, resolved."""
    x, rest = inputs[0], [None if a is None else a.tolist() for a in inputs[1:]]
    rest += [None] * 4
    if op in ("reshape", "flatten", "squeeze", "unsqueeze", "expand"):
        return "expand" if op == "expand" else "reshape", [x], {"shape": expected.shape}
    if op == "slice":
        axes = rest[2] if rest[2] is not None else list(range(len(rest[0])))
        steps = rest[3] if rest[3] is not None else [1] * len(axes)
        cuts = [
            slice(*cut).indices(x.shape[a]) for *cut, a in zip(rest[0], rest[1], steps, axes, strict=True)
        ]
        starts, ends, steps = zip(*cuts, strict=True)
        return op, [x], {"starts": starts, "ends": ends, "axes": tuple(axes), "steps": steps}
    if op == "pad":
        axes = [a % x.ndim for a in (rest[2] if rest[2] is not None else range(x.ndim))]
        pads = [0] * (2 * x.ndim)
        for k, axis in enumerate(axes):
            pads[axis], pads[x.ndim + axis] = rest[0][k], rest[0][len(axes) + k]
        return op, [x], {"mode": attrs.get("mode", "constant"), "pads": tuple(pads), "value": rest[1] or 0.0}
    if op == "tile":
        return op, [x], {"repeats": tuple(rest[0])}
    if op == "split":
        axis = attrs.get("axis", 0)
        given = rest[0]
        if given is None:
            part = expected.shape[axis]
            whole, last = divmod(x.shape[axis], part)
            given = [part] * whole + [last] * (last > 0)
        return op, [x], {"axis": axis, "split": tuple(given)}
    if op == "trilu":
        return op, [x], attrs | {"k": rest[0] or 0}
    if op == "top_k":
        return op, [x], attrs | {"k": rest[0][0]}
    if op == "one_hot":
        return op, [x, inputs[2]], attrs | {"depth": int(np.ravel(rest[0])[0])}
    return op, inputs, attrs


def _resized(inputs, attrs, expected):
    """Full-rank sizes and scales."""
    x = inputs[0]
    axes = attrs.get("axes") or tuple(range(x.ndim))
    scales = [1.0] * x.ndim
    for k, axis in enumerate(axes):
        if len(inputs) > 2 and inputs[2] is not None and inputs[2].size:
            scales[axis] = float(inputs[2][k])
        else:
            scales[axis] = expected.shape[axis] / x.shape[axis]
    return [x], attrs | {"sizes": expected.shape, "scales": tuple(scales)}


def check_adapted(operators, skip=()):
    """Stages and reference against ONNX's arrays, but for the cases whose name holds one of `skip`."""
    failures, count = [], 0
    for name, op, inputs, attrs, expected in onnx_cases(operators):
        if any(part in name for part in skip):
            continue
        op = {"mat_mul": "matmul"}.get(op, op)
        if op in ("conv", "conv_transpose", "max_pool", "average_pool"):
            attrs = _padding(op, inputs, attrs, expected)
        elif op == "resize":
            inputs, attrs = _resized(inputs, attrs, expected)
        else:
            op, inputs, attrs = _moved(op, inputs, attrs, expected)
        count += 1
        for who, outputs in (("stages", run(op, inputs, attrs)), ("reference", oracle(op, inputs, attrs))):
            actual = outputs[0].astype(expected.dtype)
            if actual.shape != expected.shape:
                failures.append(f"{name}, {who}: {actual.shape}, not {expected.shape}")
                continue
            comparison = compare(actual, expected, inputs[0].size)
            if not comparison.within:
                failures.append(f"{name}, {who}: {comparison}")
    assert not failures, "\n".join(failures)
    return count
