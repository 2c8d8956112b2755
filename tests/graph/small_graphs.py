"""Small models that optimisers are known to break, each with inputs and results from numpy in float64.

`SMALL_GRAPHS` maps a name to a function that builds one; `check` compares the outputs of any way to run
it (interpreter, compiled code, fused or not) within the project's tolerance. The kinds come from public
bug reports on several compilers; each builder says which rule it guards.
"""

import math

import numpy as np
from onnx import TensorProto
from small_layers import (
    SMALL_GRAPHS,
    SmallGraph,
    check,
    conv,
    f32,
    i64,
    made,
    model,
    node,
    norm,
    pool,
    relu,
    small_graph,
    softmax,
    statistics,
)

__all__ = ["SMALL_GRAPHS", "check"]


@small_graph
def conv_then_add_of_a_full_tensor():
    """An addend as large as the output is no bias, above all with groups."""
    x, w, b, c = f32(1, 1, 8, 5, 6), f32(2, 8, 2, 1, 1), f32(3, 8), f32(4, 1, 8, 5, 6)
    nodes = [node("Conv", "x w b", "t", group=4), node("Add", "t c", "a"), node("Relu", "a", "y")]
    return made(nodes, {"x": x}, {"y": relu(conv(x, w, b, group=4) + c)}, {"w": w, "b": b, "c": c})


@small_graph
def batch_norm_before_a_padded_conv():
    """The zeros at the border come after the normalisation: its shift may not enter the bias."""
    x, w, b = f32(1, 2, 3, 5, 6), f32(2, 5, 3, 3, 3), f32(3, 5)
    s, t, m, v = statistics(4, 3)
    t, m = t + 5, m - 4
    nodes = [node("BatchNormalization", "x s t m v", "n"), node("Conv", "n w b", "y", pads=[1, 1, 1, 1])]
    y = conv(norm(x, s, t, m, v), w, b, pads=(1, 1, 1, 1))
    return made(nodes, {"x": x}, {"y": y}, {"w": w, "b": b, "s": s, "t": t, "m": m, "v": v})


@small_graph
def shared_weights_with_one_batch_norm():
    """Folding must copy the weights; values before the normalisation are outputs; scales are 0 and < 0."""
    w, b, x1, x2 = f32(1, 4, 3, 3, 3), f32(2, 4), f32(3, 1, 3, 6, 6), f32(4, 1, 3, 6, 6)
    s, t, m = np.array([1.5, -2, 0, 1e-3], np.float32), f32(6, 4), f32(7, 4)
    v = np.array([1, 0.5, 4, 0.01], np.float32)
    attrs = {"pads": [0, 1, 1, 0], "strides": [2, 1]}
    nodes = [
        node("Conv", "x1 w b", "t1", **attrs), node("Conv", "x2 w b", "t2", **attrs),
        node("BatchNormalization", "t1 s t m v", "n", epsilon=0.02), node("Relu", "n", "y1"),
        node("Relu", "t2", "r2"), node("Add", "y1 r2", "y2"),
    ]  # fmt: skip
    t1, t2 = (conv(x, w, b, strides=(2, 1), pads=(0, 1, 1, 0)) for x in (x1, x2))
    y1 = relu(norm(t1, s, t, m, v, 0.02))
    expected = {"t1": t1, "t2": t2, "y1": y1, "y2": y1 + relu(t2)}
    return made(nodes, {"x1": x1, "x2": x2}, expected, {"w": w, "b": b, "s": s, "t": t, "m": m, "v": v})


@small_graph
def residual_that_stays_live():
    """A residual that is read after the add may not be overwritten by it."""
    x, w1, w2 = f32(1, 1, 4, 6, 7), f32(2, 4, 4, 3, 3) / 4, f32(3, 4, 4, 3, 3) / 4
    nodes = [
        node("Relu", "x", "r"), node("Conv", "r w1", "c1", pads=[1] * 4), node("Add", "c1 r", "s"),
        node("Relu", "s", "q"), node("Conv", "q w2", "c2", pads=[1] * 4), node("GlobalAveragePool", "r", "g"),
        node("Add", "g c2", "a"), node("Mul", "a r", "p"), node("Sub", "p q", "y"),
    ]  # fmt: skip
    r = relu(x.astype(np.float64))
    s = conv(r, w1, pads=(1,) * 4) + r
    y = (r.mean((2, 3), keepdims=True) + conv(relu(s), w2, pads=(1,) * 4)) * r - relu(s)
    return made(nodes, {"x": x}, {"y": y, "s": s}, {"w1": w1, "w2": w2}, reduction_length=256)


@small_graph
def relu_beside_clip_in_float64():
    """Relu then Clip(-1, 1) is Clip(0, 1); both orders, in float64."""
    x = np.array([-3, -1, -0.25, 0, 0.5, 1, 7], np.float64)
    nodes = [
        node("Relu", "x", "r"), node("Clip", "r lo hi", "y1"),
        node("Clip", "x lo hi", "c"), node("Relu", "c", "y2"),
    ]  # fmt: skip
    y = np.clip(x, 0, 1)
    types = {"y1": np.float64, "y2": np.float64}
    return made(
        nodes,
        {"x": x},
        {"y1": y, "y2": y},
        {"lo": np.float64(-1), "hi": np.float64(1)},
        dtypes=types,
        exact=True,
    )


@small_graph
def nan_and_infinity_pass_through():
    """NaN in either operand stays NaN; -0 and infinities are data."""
    nan, inf = np.nan, np.inf
    a = np.array([nan, 7, nan, -2.5, inf, -inf, 0, 3, nan, 1], np.float32)
    b = np.array([1, nan, nan, 9, 1, nan, -0.0, -3, -inf, 1], np.float32)
    nodes = [
        node("Relu", "a", "relu"), node("Max", "a b", "most"), node("Min", "a b", "least"),
        node("Clip", "a lo hi", "clip"), node("Sign", "a", "sign"),
        node("LeakyRelu", "a", "leaky", alpha=0.5),
    ]  # fmt: skip
    expected = {
        "relu": relu(a), "most": np.maximum(a, b), "least": np.minimum(a, b),
        "clip": np.minimum(np.maximum(a, -2), 2), "sign": np.sign(a),
        "leaky": np.where(a < 0, a * np.float32(0.5), a),
    }  # fmt: skip
    constants = {"lo": np.float32(-2), "hi": np.float32(2)}
    return made(nodes, {"a": a, "b": b}, expected, constants, exact=True)


@small_graph
def guards_that_fast_math_deletes():
    """Where(IsNaN), IsInf, x == x and x - x mean what they say."""
    x = np.array([np.nan, 1, np.inf, -np.inf, -2, 0, np.nan, 4], np.float32)
    nodes = [
        node("IsNaN", "x", "n"), node("Where", "n zero x", "y1"), node("IsInf", "x", "i", detect_negative=0),
        node("Where", "i big y1", "y2"), node("Equal", "x x", "y3"), node("Sub", "y1 y1", "d"),
        node("IsNaN", "d", "dn"), node("Where", "dn one y1", "y4"),
    ]  # fmt: skip
    y1 = np.where(np.isnan(x), np.float32(0), x)
    expected = {
        "y1": y1, "y2": np.where(np.isposinf(x), np.float32(1e4), y1), "y3": x == x,
        "y4": np.where(np.isinf(y1), np.float32(1), y1),
    }  # fmt: skip
    constants = {"zero": np.float32(0), "big": np.float32(1e4), "one": np.float32(1)}
    return made(nodes, {"x": x}, expected, constants, exact=True)


@small_graph
def casts_round_each_time():
    """float16 and integer casts in a chain round; 0.5 as int32 as bool is false."""
    x = (np.arange(40, dtype=np.float32).reshape(5, 8) / np.float32(7)) - np.float32(1.3)
    x[0, :4] = 70000, 0.5, -0.5, 1e-8
    to = {"f16": TensorProto.FLOAT16, "f": TensorProto.FLOAT, "i": TensorProto.INT32, "b": TensorProto.BOOL}
    nodes = [
        node("Cast", "x", "h", to=to["f16"]), node("Cast", "h", "g", to=to["f"]), node("Mul", "g two", "y1"),
        node("Clip", "x lo hi", "c"), node("Cast", "c", "i", to=to["i"]), node("Cast", "i", "y2", to=to["b"]),
        node("Cast", "i", "y3", to=to["f"]),
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        y1 = x.astype(np.float16).astype(np.float32) * np.float32(2)
    i = np.clip(x, -100, 100).astype(np.int32)
    constants = {"two": np.float32(2), "lo": np.float32(-100), "hi": np.float32(100)}
    return made(nodes, {"x": x}, {"y1": y1, "y2": i != 0, "y3": i.astype(np.float32)}, constants, exact=True)


@small_graph
def average_pool_counts_real_pixels():
    """With ceil_mode and without padding counted, the divisor is the number of pixels in the window."""
    x = (np.arange(242, dtype=np.float32).reshape(1, 2, 11, 11) % 17) - 5
    nodes = [
        node("AveragePool", "x", "p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("Relu", "p", "y1"),
        node("AveragePool", "x", "y2", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 2], ceil_mode=1),
    ]  # fmt: skip
    y1, y2 = (
        pool(x, *args, np.mean) for args in (((2, 2), (2, 2), (0,) * 4), ((3, 3), (2, 2), (1, 0, 0, 2)))
    )
    return made(nodes, {"x": x}, {"y1": relu(y1), "y2": y2})


@small_graph
def max_pool_of_negative_values():
    """The padding of MaxPool is minus infinity, that of Pad a real zero."""
    x = -1 - abs(f32(16, 1, 2, 7, 8))
    nodes = [
        node("MaxPool", "x", "y1", kernel_shape=[3, 2], strides=[2, 2], dilations=[2, 1], pads=[0, 1, 2, 0],
             ceil_mode=1),
        node("Pad", "x pads", "p"),
        node("MaxPool", "p", "y2", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    ]  # fmt: skip
    y1 = pool(x, (3, 2), (2, 2), (0, 1, 2, 0), np.max, (2, 1))
    y2 = pool(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 0))), (3, 3), (2, 2), (0,) * 4, np.max)
    return made(nodes, {"x": x}, {"y1": y1, "y2": y2}, {"pads": i64(0, 0, 1, 1, 0, 0, 1, 0)})


@small_graph
def automatic_padding():
    """SAME_UPPER pads the odd pixel at the end, SAME_LOWER at the beginning; dilation counts."""
    x, w = f32(1, 1, 3, 9, 10), f32(2, 4, 3, 4, 3)
    nodes, expected = [], {}
    for name, (mode, s, d) in {
        "a": ("SAME_LOWER", 2, 1),
        "b": ("SAME_UPPER", 2, 1),
        "c": ("SAME_LOWER", 1, 2),
    }.items():
        nodes += [
            node("Conv", "x w", f"t{name}", auto_pad=mode, strides=[s, s], dilations=[d, d]),
            node("Relu", f"t{name}", name),
        ]
        begins, ends = [], []
        for n, k in ((9, 4), (10, 3)):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            begins.append(total - total // 2 if mode == "SAME_LOWER" else total // 2)
            ends.append(total - begins[-1])
        expected[name] = relu(conv(x, w, strides=(s, s), dilations=(d, d), pads=(*begins, *ends)))
    return made(nodes, {"x": x}, expected, {"w": w})


@small_graph
def softmax_of_opset_11():
    """Before opset 13 all axes from `axis` (default 1) on are one."""
    x = f32(20, 2, 3, 4) * 3
    nodes = [
        node("Softmax", "x", "y0"), node("Softmax", "x", "y1", axis=1), node("Softmax", "x", "y2", axis=-1),
        node("LogSoftmax", "x", "y3", axis=1), node("Softmax", "x", "y4", axis=0),
    ]  # fmt: skip
    flat = softmax(x.reshape(2, 12)).reshape(x.shape)
    expected = {
        "y0": flat,
        "y1": flat,
        "y2": softmax(x),
        "y3": np.log(flat),
        "y4": softmax(x.reshape(1, 24)).reshape(x.shape),
    }
    return made(nodes, {"x": x}, expected, opset=11)


@small_graph
def gemm_behind_transposes():
    """Only perm [1, 0] transposes; C broadcasts as [M, 1] and is scaled by beta."""
    x, w1, w2, b, c, q = f32(1, 3, 4), f32(2, 4, 5), f32(3, 4, 5), f32(4, 5), f32(5, 3, 1), f32(6, 4, 4)
    nodes = [
        node("Transpose", "w1", "wt", perm=[0, 1]), node("Gemm", "x wt b", "g0"), node("Relu", "g0", "y0"),
        node("Transpose", "w2", "wi", perm=[0, 1]), node("Gemm", "x wi b", "y1"),
        node("Transpose", "x", "xt"),
        node("Gemm", "xt q c", "g2", transA=1, alpha=0.5, beta=-2.0), node("Relu", "g2", "y2"),
    ]  # fmt: skip
    d = x.astype(np.float64)
    expected = {"y0": relu(d @ w1 + b), "y1": d @ w2 + b, "y2": relu(0.5 * d @ q - 2.0 * c)}
    return made(nodes, {"x": x, "w1": w1}, expected, {"w2": w2, "b": b, "c": c, "q": q})


@small_graph
def no_ops_that_feed_outputs():
    """Removing a same-type Cast, an Identity, a Dropout must keep every consumer and every output name."""
    x = np.array([[1.5, -2, 4], [0.25, 8, -0.5]], np.float32)
    y = np.array([[3, 5, -7], [2, 1, 9]], np.float32)
    nodes = [
        node("Cast", "one", "mid", to=1), node("Mul", "x mid", "a"), node("Cast", "a", "c", to=1),
        node("Identity", "c", "o1"), node("Add", "c zero", "o2"), node("Dropout", "x", "d"),
        node("Identity", "d", "o3"), node("Mul", "mid y", "o4"), node("Identity", "d", "o5"),
    ]  # fmt: skip
    expected = {"o1": x, "o2": x, "o3": x, "o4": y, "o5": x}
    return made(
        nodes,
        {"x": x, "y": y},
        expected,
        {"one": np.float32(1), "zero": np.zeros((1, 1), np.float32)},
        exact=True,
    )


@small_graph
def integers_stay_exact():
    """Division truncates, Mod has the divisor's sign, fmod the dividend's; nothing passes through floats."""
    a = np.array([777777777, 1111111111, 1900000000, -1999999999, -7, 7, -1, 16777217], np.int32)
    b = np.array([11, 11, 13, 11, 2, -2, 3, 1], np.int32)
    nodes = [
        node("Div", "a b", "q"), node("Mod", "a b", "m"), node("Mod", "a b", "r", fmod=1),
        node("Mul", "q b", "p"), node("Add", "p r", "back"),
    ]  # fmt: skip
    quotient = np.array([math.trunc(int(u) / int(v)) for u, v in zip(a, b, strict=True)], np.int32)
    expected = {"q": quotient, "m": np.mod(a, b), "r": a - quotient * b, "back": a}
    return made(nodes, {"a": a, "b": b}, expected, exact=True)


@small_graph
def reads_of_moved_views():
    """t + transpose(t) and u - reverse(u) may not run in place."""
    x = f32(27, 33, 33)
    nodes = [
        node("Exp", "x", "t"), node("Transpose", "t", "tt", perm=[1, 0]), node("Add", "t tt", "y0"),
        node("Tanh", "y0", "u"), node("Slice", "u st en ax sp", "ur"), node("Sub", "u ur", "y1"),
        node("Sigmoid", "y1", "v"), node("ReduceMax", "v", "vm", axes=[1]), node("Div", "v vm", "y2"),
    ]  # fmt: skip
    t = np.exp(x.astype(np.float64))
    u = np.tanh(t + t.T)
    v = 1 / (1 + np.exp(-(u - u[:, ::-1])))
    constants = {"st": i64(-1), "en": i64(-(2**62)), "ax": i64(1), "sp": i64(-1)}
    return made(
        nodes, {"x": x}, {"y0": t + t.T, "y1": u - u[:, ::-1], "y2": v / v.max(1, keepdims=True)}, constants
    )


@small_graph
def attention_with_masked_blocks():
    """Rows that begin with masked blocks, large scores, and a row masked everywhere (NaN)."""
    q, k, v = f32(1, 1, 2, 5, 8), f32(2, 1, 2, 70, 8), f32(3, 1, 2, 70, 4)
    q[0, 0, 3] *= 300
    mask = np.zeros((1, 1, 5, 70), np.float32)
    mask[..., 1, :65] = mask[..., 2, 1:] = mask[..., 0, 33] = -np.inf
    mask[..., 4, :] = -np.inf
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]), node("MatMul", "q kt", "s"),
        node("Mul", "s scale", "r"),
        node("Add", "r mask", "m"), node("Softmax", "m", "p", axis=-1), node("MatMul", "p v", "y"),
    ]  # fmt: skip
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * 0.25 + mask
    inputs = {"q": q, "k": k, "v": v, "mask": mask}
    y = softmax(scores) @ v.astype(np.float64)
    return made(nodes, inputs, {"y": y}, {"scale": np.float32(0.25)}, reduction_length=4096)


@small_graph
def symbolic_batch_and_image():
    """One model at several sizes: size 1, tails, odd shapes; Reshape(0, -1) follows."""
    w, b, gw, gb = f32(1, 5, 5, 3, 3) / 3, f32(2, 5), f32(3, 5, 3), f32(4, 3)
    s, t, m, v = statistics(5, 5)
    nodes = [
        node("Conv", "x w b", "c", pads=[1] * 4), node("BatchNormalization", "c s t m v", "n"),
        node("Relu", "n", "r"), node("Add", "r x", "a"), node("GlobalAveragePool", "a", "p"),
        node("Reshape", "p shape", "f"), node("Gemm", "f gw gb", "y"),
    ]  # fmt: skip
    constants = {"w": w, "b": b, "s": s, "t": t, "m": m, "v": v, "shape": i64(0, -1), "gw": gw, "gb": gb}

    def run(*shape):
        x = f32(sum(shape), *shape)
        a = relu(norm(conv(x, w, b, pads=(1,) * 4), s, t, m, v)) + x
        return {"x": x}, {"y": a.mean((2, 3)) @ gw + gb, "a": a}

    inputs, expected = run(2, 5, 7, 9)
    proto = model(
        nodes, inputs, dict.fromkeys(expected, np.float32), constants, dims={"x": ["N", 5, "H", "W"]}
    )
    more = [run(*shape) for shape in ((1, 5, 1, 1), (3, 5, 17, 2), (1, 5, 4, 31))]
    return SmallGraph(proto, inputs, expected, reduction_length=256, more_runs=more)


@small_graph
def variance_of_data_far_from_zero():
    """Sums of a million terms, and a variance that E[x^2] - E[x]^2 would lose."""
    a = np.full(1 << 20, 0.1, np.float32)
    c = f32(31, 4, 4096) * np.float32(0.5) + np.float32(100)
    nodes = [
        node("ReduceSum", "a", "y0", keepdims=0), node("ReduceMean", "c", "mu", axes=[1]),
        node("Sub", "c mu", "d"),
        node("Mul", "d d", "sq"), node("ReduceMean", "sq", "var", axes=[1]),
    ]  # fmt: skip
    wide = c.astype(np.float64)
    expected = {"y0": a.astype(np.float64).sum(), "var": wide.var(1, keepdims=True)}
    return made(nodes, {"a": a, "c": c}, expected, reduction_length=4096)


@small_graph
def outer_product_reduced():
    """[M,1] against [1,N], a chain, a sum over N: the M x N tensor need never exist."""
    x, y, w = f32(1, 37, 1), f32(2, 1, 301), f32(3, 1, 301)
    nodes = [
        node("Sub", "x y", "d"), node("Mul", "d d", "q"), node("Mul", "q half", "e"), node("Exp", "e", "k"),
        node("Mul", "w k", "t"), node("ReduceSum", "t ax", "z", keepdims=0), node("Abs", "d", "ad"),
        node("ReduceMin", "ad", "least", axes=[1]),
    ]  # fmt: skip
    d = x.astype(np.float64) - y
    expected = {"z": (w * np.exp(-(d * d) / 2)).sum(1), "least": abs(d).min(1, keepdims=True)}
    constants = {"half": np.float32(-0.5), "ax": i64(1)}
    return made(nodes, {"x": x, "y": y, "w": w}, expected, constants, reduction_length=301)


@small_graph
def attributes_of_opset_9():
    """Parameters as attributes (Clip, Pad, Slice, Squeeze, ReduceSum), Upsample, the old Softmax."""
    x = f32(34, 2, 3, 4, 5) * 2
    s, t, m, v = statistics(1, 3)
    nodes = [
        node("BatchNormalization", "x s t m v", "n"), node("Clip", "n", "c", min=-1.5, max=1.0),
        node("Pad", "c", "p", pads=[0, 0, 1, 0, 0, 0, 0, 2], value=0.5),
        node("Slice", "p", "sl", starts=[1, -5], ends=[4, 2**31 - 1], axes=[2, 3]),
        node("Upsample", "sl scales", "up", mode="nearest"),
        node("ReduceSum", "up", "rs", axes=[2], keepdims=1),
        node("Squeeze", "rs", "sq", axes=[2]), node("Unsqueeze", "sq", "us", axes=[1]),
        node("Dropout", "us", "d", ratio=0.5), node("Flatten", "d", "f"), node("Softmax", "f", "y"),
    ]  # fmt: skip
    p = np.pad(np.clip(norm(x, s, t, m, v), -1.5, 1.0), ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=0.5)
    up = p[:, :, 1:4, -5:].repeat(2, 2).repeat(3, 3)
    constants = {"s": s, "t": t, "m": m, "v": v, "scales": np.array([1, 1, 2, 3], np.float32)}
    return made(nodes, {"x": x}, {"y": softmax(up.sum(2).reshape(2, -1))}, constants, opset=9)


@small_graph
def outputs_that_are_other_values():
    """Identity of an input and of a weight, one value as two outputs, an output read again."""
    x, k = np.array([[-1, 2, -3], [4, -5, 6]], np.float32), np.array([[1, 2, 3]], np.float32)
    nodes = [
        node("Identity", "x", "o_in"), node("Identity", "k", "o_weight"), node("Relu", "x", "o_mid"),
        node("Mul", "o_mid k", "t"), node("Identity", "t", "o_a"), node("Identity", "t", "o_b"),
        node("Reshape", "x shape", "o_view"),
    ]  # fmt: skip
    expected = {
        "o_in": x, "o_weight": k, "o_mid": relu(x), "o_a": relu(x) * k, "o_b": relu(x) * k,
        "o_view": x.reshape(3, 2),
    }  # fmt: skip
    inputs = {"x": x, "unused": np.zeros(1, np.float32)}
    return made(nodes, inputs, expected, {"k": k, "shape": i64(3, -1)}, exact=True)


@small_graph
def three_kinds_of_gelu():
    """Erf, tanh and sigmoid forms are three functions."""
    x, b = (
        np.linspace(-5, 5, 96, dtype=np.float32).reshape(2, 48),
        np.linspace(-0.5, 0.5, 48, dtype=np.float32),
    )
    nodes = [
        node("Add", "x b", "z"), node("Div", "z sqrt2", "e0"), node("Erf", "e0", "e1"),
        node("Add", "e1 one", "e2"),
        node("Mul", "z e2", "e3"), node("Mul", "e3 half", "y0"), node("Pow", "z three", "t0"),
        node("Mul", "t0 cubic", "t1"), node("Add", "z t1", "t2"), node("Mul", "t2 root", "t3"),
        node("Tanh", "t3", "t4"), node("Add", "t4 one", "t5"), node("Mul", "z t5", "t6"),
        node("Mul", "half t6", "y1"), node("Mul", "z q", "g0"), node("Sigmoid", "g0", "g1"),
        node("Mul", "g1 z", "y2"),
    ]  # fmt: skip
    z = (x + b).astype(np.float64)
    root = math.sqrt(2 / math.pi)
    expected = {
        "y0": z * 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2))),
        "y1": 0.5 * z * (1 + np.tanh(root * (z + 0.044715 * z**3))),
        "y2": z / (1 + np.exp(-1.702 * z)),
    }
    numbers = {
        "sqrt2": math.sqrt(2),
        "one": 1,
        "half": 0.5,
        "three": 3,
        "cubic": 0.044715,
        "root": root,
        "q": 1.702,
    }
    return made(nodes, {"x": x}, expected, {"b": b, **{key: np.float32(v) for key, v in numbers.items()}})


@small_graph
def float64_beyond_float32():
    """float64 keeps its range; Clip with one limit; lower above upper limit gives the upper."""
    d, f = np.array([np.inf, -np.inf, np.nan, 1.5, 1e300, -1e-300]), np.array([-3, 0.5, 9], np.float32)
    nodes = [
        node("Neg", "d", "n"), node("Abs", "n", "y0"), node("Mul", "d half", "y1"),
        node("Clip", "f _ two", "y2"),
        node("Clip", "f five one", "y3"),
    ]  # fmt: skip
    expected = {
        "y0": abs(d),
        "y1": d / 2,
        "y2": np.minimum(f, np.float32(2)),
        "y3": np.full(3, 1, np.float32),
    }
    constants = {"half": np.float64(0.5), "two": np.float32(2), "five": np.float32(5), "one": np.float32(1)}
    return made(
        nodes, {"d": d, "f": f}, expected, constants, dtypes={"y0": np.float64, "y1": np.float64}, exact=True
    )


@small_graph
def local_response_normalisation():
    """The bias 1.5 is no integer; the window is over channels and clipped at the ends."""
    x = f32(41, 2, 7, 3, 4) * 2
    nodes = [
        node("LRN", "x", "a", size=3, alpha=0.1, beta=0.7, bias=1.5), node("Relu", "a", "y0"),
        node("LRN", "x", "b", size=4, alpha=0.02, beta=0.75, bias=2.0), node("Mul", "b x", "y1"),
    ]  # fmt: skip

    def lrn(size, alpha, beta, bias):
        wide, total = x.astype(np.float64), np.zeros(x.shape)
        for c in range(7):
            total[:, c] = (wide[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(1)
        return wide / (bias + alpha / size * total) ** beta

    return made(
        nodes, {"x": x}, {"y0": relu(lrn(3, 0.1, 0.7, 1.5)), "y1": lrn(4, 0.02, 0.75, 2.0) * x}, opset=13
    )


@small_graph
def pointwise_ops_around_concat_and_split():
    """Each consumer of a Split sees its own offset; one producer feeds a Concat and a narrowing Cast."""
    x, pad = f32(43, 5, 10), np.zeros((3, 10), np.float32)
    nodes = [
        node("Relu", "x", "r"), node("Concat", "r pad", "cat", axis=0), node("Exp", "cat", "y0"),
        node("Cast", "r", "y1", to=TensorProto.FLOAT16), node("Split", "x parts", "a b c", axis=1),
        node("Sigmoid", "b", "sb"), node("Mul", "a sb", "glu"), node("Concat", "c glu a", "y2", axis=-1),
        node("ReduceSum", "c ax", "rs"), node("Add", "glu rs", "y3"),
    ]  # fmt: skip
    a, b, c = np.split(x.astype(np.float64), [4, 8], axis=1)
    glu = a / (1 + np.exp(-b))
    expected = {
        "y0": np.exp(np.concatenate([relu(x), pad]).astype(np.float64)), "y1": relu(x).astype(np.float16),
        "y2": np.concatenate([c, glu, a], axis=1), "y3": glu + c.sum(1, keepdims=True),
    }  # fmt: skip
    return made(nodes, {"x": x}, expected, {"pad": pad, "parts": i64(4, 4, 2), "ax": i64(1)})


@small_graph
def conv_and_batch_norm_in_1_and_3_dimensions():
    """Causal depthwise, strided, and 3-D convolutions, each with a batch norm and an activation."""
    x, z = f32(1, 2, 6, 13), f32(2, 1, 2, 4, 5, 3)
    wd, w1, w3, b3 = f32(3, 6, 1, 3), f32(4, 4, 6, 3) / 4, f32(5, 5, 2, 2, 3, 1) / 4, f32(6, 5)
    d, p, q = statistics(10, 6), statistics(20, 4), statistics(30, 5)
    constants = {"wd": wd, "w1": w1, "w3": w3, "b3": b3}
    for prefix, values in (("d", d), ("p", p), ("q", q)):
        constants |= {prefix + key: value for key, value in zip("stmv", values, strict=True)}
    nodes = [
        node("Conv", "x wd", "d0", group=6, dilations=[2], pads=[4, 0]),
        node("BatchNormalization", "d0 ds dt dm dv", "d1"), node("HardSwish", "d1", "d2"),
        node("Conv", "d2 w1", "p0", strides=[2], pads=[2, 0]),
        node("BatchNormalization", "p0 ps pt pm pv", "p1"),
        node("Relu", "p1", "y0"), node("Conv", "z w3 b3", "q0", pads=[1, 0, 0, 0, 1, 0]),
        node("BatchNormalization", "q0 qs qt qm qv", "q1"), node("LeakyRelu", "q1", "y1", alpha=0.125),
    ]  # fmt: skip
    d1 = norm(conv(x, wd, group=6, dilations=(2,), pads=(4, 0)), *d)
    y0 = relu(norm(conv(d1 * np.clip(d1 / 6 + 0.5, 0, 1), w1, strides=(2,), pads=(2, 0)), *p))
    q1 = norm(conv(z, w3, b3, pads=(1, 0, 0, 0, 1, 0)), *q)
    expected = {"y0": y0, "y1": np.where(q1 < 0, q1 / 8, q1)}
    return made(nodes, {"x": x, "z": z}, expected, constants, reduction_length=256)


@small_graph
def subnormal_numbers():
    """Floats are IEEE: nothing is flushed to zero."""
    a, p, q = (np.array(v, np.float32) for v in ([1e-20, 3e-39, 2e-40], [3e-39], [1.5e-39]))
    nodes = [node("Mul", "a tiny", "y0"), node("Div", "p q", "y1"), node("Mul", "a half", "y2")]
    expected = {"y0": a * np.float32(1e-20), "y1": p / q, "y2": a * np.float32(0.5)}
    constants = {"tiny": np.float32(1e-20), "half": np.float32(0.5)}
    return made(nodes, {"a": a, "p": p, "q": q}, expected, constants, exact=True)


@small_graph
def float16_overflows_between_nodes():
    """60000 + 60000 is infinite in float16, also inside a fused chain."""
    a = np.array([60000, 300, -60000, 2.5], np.float16)
    nodes = [node("Add", "a a", "s"), node("Mul", "s half", "y0"), node("Sub", "s a", "y1")]
    with np.errstate(all="ignore"):
        expected = {"y0": (a + a) * np.float16(0.5), "y1": (a + a) - a}
    return made(nodes, {"a": a}, expected, {"half": np.float16(0.5)}, exact=True)


@small_graph
def an_empty_batch():
    """No rows in, no rows out; a mean over nothing else."""
    x, w = np.zeros((0, 3, 4, 4), np.float32), f32(1, 2, 3, 3, 3)
    nodes = [node("Conv", "x w", "c"), node("Relu", "c", "r"), node("GlobalAveragePool", "r", "y")]
    return made(nodes, {"x": x}, {"y": np.zeros((0, 2, 1, 1), np.float32)}, {"w": w})


@small_graph
def scalars_and_broadcasts():
    """Rank 0 against rank 3, in both positions, and a scalar result."""
    x, s = f32(1, 2, 1, 3), np.float32(2.5).reshape(())
    nodes = [
        node("Mul", "s x", "a"), node("Add", "a row", "y0"), node("Sub", "s s", "y1"),
        node("ReduceMax", "x", "y2", keepdims=0),
    ]  # fmt: skip
    row = f32(2, 4, 1)
    expected = {"y0": 2.5 * x.astype(np.float64) + row, "y1": np.float32(0).reshape(()), "y2": x.max()}
    return made(nodes, {"x": x, "s": s}, {k: np.asarray(v) for k, v in expected.items()}, {"row": row})


@small_graph
def embedding_and_layer_norm():
    """Gather with negative indices, LayerNormalization, MatMul, and a mean masked by lengths."""
    table, w = f32(1, 11, 8), f32(2, 8, 4)
    ids = np.array([[1, -1, 3], [0, 10, 2]], np.int64)
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.float32)
    scale, bias = f32(3, 8), f32(4, 8)
    nodes = [
        node("Gather", "table ids", "e"), node("LayerNormalization", "e scale bias", "n", axis=-1),
        node("MatMul", "n w", "h"), node("Unsqueeze", "mask axis", "m"), node("Mul", "h m", "hm"),
        node("ReduceSum", "hm one", "total", keepdims=0), node("ReduceSum", "m one", "count", keepdims=0),
        node("Div", "total count", "y"),
    ]  # fmt: skip
    e = table[ids].astype(np.float64)
    n = (e - e.mean(-1, keepdims=True)) / np.sqrt(e.var(-1, keepdims=True) + np.float32(1e-5)) * scale + bias
    y = ((n @ w) * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    constants = {"table": table, "w": w, "scale": scale, "bias": bias, "axis": i64(2), "one": i64(1)}
    return made(nodes, {"ids": ids, "mask": mask}, {"y": y}, constants)
