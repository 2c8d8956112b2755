"""The other process of `interpreted.py`: runs the cases of a folder in Triton's interpreter."""

import json
import sys
from pathlib import Path

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from onepass.core.dtypes import BF16, DTYPES
from onepass.core.tensor import TensorType
from onepass.loops.ir import Buffer
from onepass.loops.tile import TileKernel
from onepass.runtime.gpu_program import GpuProgram
from onepass.runtime.program import Launch

ARITHMETIC = ("binary_op", "unary_op", "create_fma", "create_fabs", "create_clampf", "create_idiv")
GUARD = 64


class Guarded(GpuProgram):
    """A program with known bytes around each input and output."""

    def _bytes(self, size):
        whole = self._torch.full((size + 2 * GUARD,), 0xA5, dtype=self._torch.uint8)
        whole[GUARD : GUARD + size] = 0xFF
        self.__dict__.setdefault("_whole", []).append(whole)
        return whole[GUARD : GUARD + size]

    def check(self, arrays):
        """Asserts that no kernel wrote around a buffer, or into an input."""
        for whole in self._whole:
            assert (whole[:GUARD] == 0xA5).all() and (whole[-GUARD:] == 0xA5).all(), "written out of bounds"
        for static, array in zip(self._in, arrays, strict=True):
            assert static.numpy().tobytes() == array.tobytes(), "an input was overwritten"


def widened(tile):
    """A tile of bfloat16 as one of float32; every other as it is."""
    if tile.dtype.scalar != tl.bfloat16:
        return tile
    return interpreter.TensorHandle(tile.data.view(BF16.numpy).astype(np.float32), tl.float32)


def correct_bfloat16(builder):
    """Conversions and dots as on a GPU, an error for all other arithmetic (see `interpreted.py`)."""
    cast, dot = builder.cast_impl, builder.create_dot

    def cast_impl(self, source, target):
        source = widened(source)
        if target.scalar != tl.bfloat16:
            return cast(self, source, target)
        rounded = source.data.astype(np.float32).astype(BF16.numpy)
        return interpreter.TensorHandle(rounded.view(np.uint16), tl.bfloat16)

    def create_dot(self, a, b, *rest):
        return dot(self, widened(a), widened(b), *rest)

    def refusing(method):
        def run(self, *operands):
            tiles = [x for x in operands if isinstance(x, interpreter.TensorHandle)]
            assert all(x.dtype.scalar != tl.bfloat16 for x in tiles), "arithmetic on bfloat16: widen it first"
            return method(self, *operands)

        return run

    builder.cast_impl, builder.create_dot = cast_impl, create_dot
    builder.create_fp_to_fp = lambda self, source, target, rounding: cast_impl(self, source, target)
    for name in ARITHMETIC:
        setattr(builder, name, refusing(getattr(builder, name)))


def kind_of(described):
    name, shape = described
    return TensorType(DTYPES[name], tuple(shape))


def kernel_of(described):
    params = tuple(
        Buffer(param["name"], DTYPES[param["dtype"]["name"]], tuple(param["shape"]))
        for param in described["params"]
    )
    return TileKernel(**{**described, "params": params, "grid": tuple(described["grid"])})


def run(case, arrays, prefix, folder):
    """The outputs of one case, as bytes."""

    def given(part, name, kind):
        return arrays[f"{prefix}/{part}/{name}"].view(kind.dtype.numpy).reshape(kind.shape)

    inputs, outputs, constants = (
        {name: kind_of(kind) for name, kind in case[part].items()}
        for part in ("inputs", "outputs", "constants")
    )
    program = Guarded(
        {name: kernel_of(kernel) for name, kernel in case["kernels"].items()},
        [Launch(x["region"], x["symbol"], tuple(x["args"])) for x in case["launches"]],
        {name: tuple(slot) for name, slot in case["slots"].items()},
        {name: given("constant", name, kind) for name, kind in constants.items()},
        list(inputs.items()), list(outputs.items()), case["arena_bytes"], "cpu", folder,
    )  # fmt: skip
    given_inputs = [given("in", name, kind) for name, kind in inputs.items()]
    results = program.run(given_inputs)
    program.check(given_inputs)
    return {
        f"{prefix}/{name}": np.ascontiguousarray(result).reshape(-1).view(np.uint8)
        for name, result in zip(outputs, results, strict=True)
    }


def main(folder):
    correct_bfloat16(interpreter.InterpreterBuilder)
    cases = json.loads((folder / "cases.json").read_text())
    found = {}
    with np.load(folder / "in.npz") as arrays:
        for at, case in enumerate(cases):
            names = ", ".join(case["kernels"])
            try:
                found |= run(case, arrays, str(at), folder / str(at))
            except BaseException as error:
                error.add_note(f"in case {at}: {names}")
                raise
    np.savez(folder / "out.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
