"""Random graphs of ops that keep values of order one: odd shapes, several readers, outputs in the middle.

In: a `random.Random` (a seeded one, or hypothesis's). Out: a `Graph` and inputs for it.
"""

import math

import numpy as np

from onepass.core.dtypes import F32, F64, dtype_of_numpy
from onepass.core.errors import UserError
from onepass.core.tensor import TensorType
from onepass.graph.ir import Graph, Node

UNARY = ("relu", "sigmoid", "tanh", "abs", "gelu", "neg", "mish", "hard_swish", "softplus", "erf", "sin")
BINARY = ("add", "sub", "mul", "max", "min")
REDUCE = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_l2", "reduce_sum_square",
          "reduce_l1")  # fmt: skip
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 19, 32, 33)
LARGEST = 12_000


class RandomGraph:
    """A graph under construction."""

    def __init__(self, random, dtype=F32):
        self.random, self.dtype = random, dtype
        self.data = np.random.default_rng(random.randrange(1 << 30))
        self.types, self.constants, self.nodes, self.values, self.inputs = {}, {}, [], [], []

    def build(self, count):
        """About `count` nodes; returns the graph and its inputs."""
        for _ in range(self.random.choice((1, 1, 2))):
            self.input()
        for _ in range(8 * count):
            if len(self.nodes) >= count:
                break
            self.step()
        if not self.nodes:
            self.add("relu", self.inputs[0])
        return self.finish()

    def finish(self):
        """The graph as it is, and its inputs; values that nothing reads are outputs, and some others."""
        read = {name for node in self.nodes for name in node.inputs}
        made = [name for node in self.nodes for name in node.outputs]
        outputs = tuple(n for n in made if n not in read or self.random.random() < 0.15)
        kept = {name: kind for name, kind in self.types.items()}
        graph = Graph("random", tuple(self.nodes), tuple(self.inputs), outputs, kept, self.constants)
        inputs = {name: self.normal(self.types[name].shape) for name in self.inputs}
        return graph, inputs

    def normal(self, shape):
        return self.data.standard_normal(shape).astype(self.dtype.numpy)

    def input(self):
        rank = self.random.choice((2, 3, 4, 4, 4, 4, 5))
        shape = tuple(self.random.choice(SIZES) for _ in range(rank))
        if rank > 2:
            shape = (self.random.choice((1, 1, 2, 3)), *shape[1:])
        if math.prod(shape) > LARGEST // 2:
            return self.input()
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.values.append(name)
        self.types[name] = TensorType(self.dtype, shape)
        return name

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(array, order="C")
        self.constants[name].setflags(write=False)
        self.types[name] = TensorType(dtype_of_numpy(array.dtype), array.shape)
        return name

    def add(self, op, *inputs, **attrs):
        """Adds a node; None where its shapes do not fit or the result is too big."""
        at = len(self.nodes)
        node = Node(f"n{at}_{op}", op, inputs, (f"v{at}",), attrs, op)
        try:
            kinds = node.opdef.lower([self.types[n] if n else None for n in inputs], attrs).output_types
        except UserError:
            return None
        if any(kind.size > LARGEST or kind.rank > 5 for kind in kinds):
            return None
        outputs = tuple(f"v{at}" if k == 0 else f"v{at}_{k}" for k in range(len(kinds)))
        self.nodes.append(Node(node.name, op, inputs, outputs, attrs, op))
        for name, kind in zip(outputs, kinds, strict=True):
            self.types[name] = kind
            self.values.append(name)
        return outputs[0]

    def step(self):
        # The latest values more often: deep graphs.
        x = self.random.choice(self.values[-3:] if self.random.random() < 0.8 else self.values)
        kind = self.random.choice(
            ("window", "window", "unary", "unary", "binary", "binary", "broadcast", "reduce", "softmax",
             "norm", "matmul", "transpose", "reshape", "concat", "slice", "pad", "split", "gather", "expand")
        )  # fmt: skip
        getattr(self, kind)(x, self.types[x].shape)

    def unary(self, x, shape):
        self.add(self.random.choice(UNARY), x)

    def binary(self, x, shape):
        mates = [v for v in self.values if self.types[v].shape == shape]
        self.add(self.random.choice(BINARY), *self.random.sample((x, self.random.choice(mates)), 2))

    def broadcast(self, x, shape):
        narrow = tuple(n if self.random.random() < 0.5 else 1 for n in shape)[self.random.randrange(3) :]
        mates = [v for v in self.values if self.types[v].rank <= len(shape)]
        y = self.constant(self.normal(narrow)) if self.random.random() < 0.6 else self.random.choice(mates)
        self.add(self.random.choice(BINARY), x, y)

    def window(self, x, shape):
        if not 3 <= len(shape) <= 5 or shape[0] > 4:
            return
        random, rank, channels = self.random, len(shape) - 2, shape[1]
        kernel = tuple(random.choice((1, 1, 2, 3, 3, 5)) for _ in range(rank))
        attrs = {
            "kernel_shape": kernel,
            "strides": tuple(random.choice((1, 1, 1, 2)) for _ in range(rank)),
            "dilations": tuple(random.choice((1, 1, 1, 2)) for _ in range(rank)),
            "pads": tuple(random.choice((0, 0, 1, 1, 2)) for _ in range(2 * rank)),
        }
        op = random.choice(("conv", "conv", "conv", "conv_transpose", "max_pool", "average_pool"))
        if "pool" in op:
            attrs["pads"] = tuple(min(p, k - 1) for p, k in zip(attrs["pads"], kernel * 2, strict=True))
            attrs["ceil_mode"] = random.choice((0, 1))
            attrs["count_include_pad"] = random.choice((0, 1))
            self.add(op, x, **attrs)
            return
        if 0 in shape:
            return
        divisors = [d for d in range(1, channels + 1) if channels % d == 0]
        group = random.choice((1, 1, channels, random.choice(divisors)))
        out = group * random.choice((1, 1, 2, 3)) if group > 1 else random.choice(SIZES)
        fan = channels // group * math.prod(kernel)
        if fan * math.prod(shape[2:]) * out > 4e6:
            return
        lead = (out, channels // group) if op == "conv" else (channels, out // group)
        weights = self.constant((self.normal((*lead, *kernel)) / math.sqrt(fan)).astype(self.dtype.numpy))
        bias = (self.constant(self.normal((out,))),) if random.random() < 0.5 else ()
        y = self.add(op, x, weights, *bias, group=group, **attrs)
        if y and random.random() < 0.4:
            scale, shift, mean = (self.constant(self.normal((out,))) for _ in range(3))
            variance = self.constant(np.abs(self.normal((out,))) + self.dtype.numpy.type(0.5))
            self.add("batch_normalization", y, scale, shift, mean, variance, epsilon=1e-5)

    def reduce(self, x, shape):
        if not shape:
            return
        axes = tuple(sorted(self.random.sample(range(len(shape)), self.random.randint(1, len(shape)))))
        op = self.random.choice((*REDUCE, "global_average_pool", "global_max_pool"))
        if op.startswith("global"):
            if len(shape) >= 3:
                self.add(op, x)
            return
        self.add(op, x, axes=axes, keepdims=self.random.choice((0, 1)))

    def softmax(self, x, shape):
        if shape:
            self.add(
                self.random.choice(("softmax", "log_softmax")), x, axis=self.random.randrange(len(shape))
            )

    def norm(self, x, shape):
        if len(shape) < 2:
            return
        if self.random.random() < 0.7 or len(shape) < 3:
            axis = self.random.choice((len(shape) - 1, self.random.randrange(1, len(shape))))
            scale, shift = (self.constant(self.normal(shape[axis:])) for _ in range(2))
            self.add("layer_normalization", x, scale, shift, axis=axis, epsilon=0.1)
        else:
            scale, shift = (self.constant(self.normal(shape[1:2])) for _ in range(2))
            self.add("instance_normalization", x, scale, shift, epsilon=0.1)

    def matmul(self, x, shape):
        if len(shape) < 2 or min(shape[-2:]) == 0:
            return
        if self.random.random() < 0.7:
            columns = self.random.choice(SIZES)
            weights = self.normal((shape[-1], columns)) / math.sqrt(shape[-1])
            self.add("matmul", x, self.constant(weights.astype(self.dtype.numpy)))
        else:
            perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
            turned = self.add("transpose", x, perm=perm)
            if turned:
                self.add("matmul", *self.random.sample((x, turned), 2))

    def transpose(self, x, shape):
        self.add("transpose", x, perm=tuple(self.random.sample(range(len(shape)), len(shape))))

    def reshape(self, x, shape):
        flat = list(shape)
        if len(flat) > 1 and self.random.random() < 0.6:
            at = self.random.randrange(len(flat) - 1)
            flat[at : at + 2] = [flat[at] * flat[at + 1]]
        elif flat:
            at = self.random.randrange(len(flat))
            divisor = self.random.choice([d for d in range(1, flat[at] + 1) if flat[at] % d == 0] or [1])
            flat[at : at + 1] = [divisor, flat[at] // divisor]
        self.add("reshape", x, shape=tuple(flat))

    def concat(self, x, shape):
        if shape:
            axis = self.random.randrange(len(shape))
            without = shape[:axis] + shape[axis + 1 :]
            mates = [
                v for v in self.values
                if (s := self.types[v].shape) and len(s) == len(shape) and s[:axis] + s[axis + 1 :] == without
            ]  # fmt: skip
            self.add(
                "concat",
                *(self.random.choice(mates) for _ in range(self.random.choice((1, 2)))),
                x,
                axis=axis,
            )

    def slice(self, x, shape):
        if shape:
            axis = self.random.randrange(len(shape))
            start = self.random.randrange(max(1, shape[axis]))
            stop = self.random.randint(start, shape[axis])
            step = self.random.choice((1, 1, 2, 3))
            if self.random.random() < 0.2 and stop > start:
                start, stop, step = stop - 1, start - 1, -step
            self.add("slice", x, starts=(start,), ends=(stop,), axes=(axis,), steps=(step,))

    def pad(self, x, shape):
        if not shape:
            return
        pads = tuple(self.random.choice((0, 0, 0, 1, 2, -1)) for _ in range(2 * len(shape)))
        self.add("pad", x, pads=pads, mode="constant", value=self.random.choice((0.0, 0.0, 1.5)))

    def split(self, x, shape):
        axis = self.random.randrange(max(1, len(shape)))
        if shape and shape[axis] > 1:
            first = self.random.randrange(1, shape[axis])
            self.add("split", x, split=(first, shape[axis] - first), axis=axis)

    def gather(self, x, shape):
        axis = self.random.randrange(max(1, len(shape)))
        if shape and shape[axis]:
            places = [
                self.random.randrange(-shape[axis], shape[axis]) for _ in range(self.random.choice((1, 3, 9)))
            ]
            self.add("gather", x, self.constant(np.array(places, np.int64)), axis=axis)

    def expand(self, x, shape):
        wide = tuple(self.random.choice((2, 3)) if n == 1 else n for n in shape)
        self.add("expand", x, shape=wide)


def random_graph(random):
    """A graph of 3 to 10 nodes with its inputs."""
    return RandomGraph(random, F64 if random.random() < 0.1 else F32).build(random.randint(3, 10))
