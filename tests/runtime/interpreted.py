"""Kernels of tiles and whole GPU programs in Triton's interpreter: any number of them in one other process.

The interpreter and the compiler cannot share a process, and importing torch and triton takes seconds, so
`interpret` takes all cases at once. Files between the two processes are JSON and npz, never pickle.

The interpreter computes with bfloat16 silently wrong: it holds one as the 16 bits of an integer and adds
those, and it truncates where a GPU rounds to nearest even. So generated source widens a bfloat16 tile with
`.to(tl.float32)` right after its load, computes in float32, and rounds with `.to(tl.bfloat16)` before a
store or a `tl.dot`. A GPU needs nothing more; in the interpreter, `interpreter_process.py` corrects these
two conversions and the dot, and makes it refuse all other arithmetic on bfloat16 tiles.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onepass.core.tensor import TensorType
from onepass.loops.tile import TileKernel
from onepass.runtime.program import Launch, Slot

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """The arguments of `GpuProgram`, and the inputs of one call of it."""

    kernels: Mapping[str, TileKernel]
    launches: Sequence[Launch]
    slots: Mapping[str, Slot]
    inputs: Mapping[str, tuple[TensorType, np.ndarray]]
    outputs: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    arena_bytes: int = 0


def case_of(kernel: TileKernel, arrays: Mapping[str, np.ndarray]) -> Case:
    """One kernel: parameters in `arrays` are inputs, the others outputs."""
    types = {buffer.name: TensorType(buffer.dtype, buffer.shape) for buffer in kernel.params}
    given = [name for name in types if name in arrays]
    made = [name for name in types if name not in arrays]
    slots: dict[str, Slot] = {name: ("input", at) for at, name in enumerate(given)}
    slots |= {name: ("output", at) for at, name in enumerate(made)}
    return Case(
        {kernel.name: kernel}, [Launch(0, kernel.name, tuple(types))], slots,
        {name: (types[name], arrays[name]) for name in given}, {name: types[name] for name in made},
    )  # fmt: skip


def interpret(cases: Sequence[Case], folder: Path) -> list[Arrays]:
    """The outputs of each case by name; bytes that no kernel wrote are 0xff, which is NaN in every float.

    Sources and arrays stay in `folder`. Raises AssertionError with the process' message for a case that
    fails, or that writes next to an input or output, or into an input.
    """
    arrays: dict[str, np.ndarray] = {}
    for at, case in enumerate(cases):
        _save(arrays, f"{at}/in/", {name: array for name, (_, array) in case.inputs.items()})
        _save(arrays, f"{at}/constant/", case.constants)
    np.savez(folder / "in.npz", **arrays)
    (folder / "cases.json").write_text(json.dumps([_described(case) for case in cases]))
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("interpreter_process.py"), folder],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with np.load(folder / "out.npz") as found:
        return [
            {name: found[f"{at}/{name}"].view(kind.dtype.numpy).reshape(kind.shape)
             for name, kind in case.outputs.items()}
            for at, case in enumerate(cases)
        ]  # fmt: skip


def _save(arrays: Arrays, prefix: str, given: Mapping[str, np.ndarray]) -> None:
    """npz knows no bfloat16, so every array is held as its bytes."""
    arrays |= {prefix + name: np.ascontiguousarray(a).reshape(-1).view(np.uint8) for name, a in given.items()}


def _described(case: Case) -> dict[str, Any]:
    def kind(tensor: TensorType) -> list[Any]:
        return [tensor.dtype.name, tensor.shape]

    return {
        "kernels": {name: asdict(kernel) for name, kernel in case.kernels.items()},
        "launches": [asdict(launch) for launch in case.launches],
        "slots": dict(case.slots),
        "inputs": {name: kind(tensor) for name, (tensor, _) in case.inputs.items()},
        "outputs": {name: kind(tensor) for name, tensor in case.outputs.items()},
        "constants": {name: [array.dtype.name, array.shape] for name, array in case.constants.items()},
        "arena_bytes": case.arena_bytes,
    }
