"""Finds the face in a photograph with CenterFace, compiled by onepass.

In: nothing; the model comes from a package index, the photograph from scikit-image. Out: on the terminal,
where the face is, and how many bytes between operators fusion saved.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import onnx
from skimage import data

import onepass
from onepass.fuse.plan import Plan
from published_models import FetchError, fetch, user_cache

CELL = 4
"""Pixels for one cell of CenterFace's output maps."""


def load_with_free_size(path: Path) -> onnx.ModelProto:
    """The published model with batch, height and width symbolic; it declares 10x3x32x32, which is not so."""
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    for values, sizes in ((inputs, ("B", "H", "W")), (model.graph.output, ("B", "h", "w"))):
        for value in values:
            for axis, size in zip((0, 2, 3), sizes, strict=True):
                value.type.tensor_type.shape.dim[axis].dim_param = size
    return model


def find_face(heat: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> tuple[float, list[int]]:
    """The highest score and its box (left, top, right, bottom) in pixels, decoded as the authors do."""
    row, column = np.unravel_index(heat[0, 0].argmax(), heat.shape[2:])
    height, width = np.exp(scale[0, :, row, column]) * CELL
    top = (row + offset[0, 0, row, column] + 0.5) * CELL - height / 2
    left = (column + offset[0, 1, row, column] + 0.5) * CELL - width / 2
    return float(heat.max()), [round(float(v)) for v in (left, top, left + width, top + height)]


def bytes_between_kernels(plan: Plan) -> int:
    """Bytes that kernels write for, and read from, other kernels in one run."""
    outside = {*plan.graph.inputs, *plan.graph.outputs, *plan.graph.constants}
    return sum(
        math.prod(plan.graph.types[name].shape) * plan.graph.types[name].dtype.size_bytes
        for region in plan.regions
        for name in (*region.inputs, *region.outputs)
        if name not in outside
    )


def main() -> int:
    """Run the example; 1 when the model cannot be fetched."""
    try:
        path = fetch("centerface", user_cache())
    except FetchError as error:
        print(f"CenterFace cannot be fetched: {error}", file=sys.stderr)
        return 1
    photograph = data.astronaut().astype(np.float32).transpose(2, 0, 1)[np.newaxis]
    model = load_with_free_size(path)
    shapes = {"input.1": photograph.shape}
    fused, unfused = (onepass.compile(model, shapes=shapes, fuse=fuse) for fuse in ("auto", "none"))
    result = fused(photograph)
    score, box = find_face(result["537"], result["538"], result["539"])
    before, after = bytes_between_kernels(unfused.plan), bytes_between_kernels(fused.plan)
    print(f"CenterFace on a photograph of 512x512: a face with score {score:.2f} at "
          f"x {box[0]} to {box[2]}, y {box[1]} to {box[3]}")
    print(f"bytes between kernels: {before / 1e6:.1f} MB op by op, {after / 1e6:.1f} MB fused "
          f"({100 * (1 - after / before):.0f} % saved); "
          f"{len(unfused.plan.regions)} kernels became {len(fused.plan.regions)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
