"""The machine description with its measured roofs, kept on disk between runs.

In: nothing but this machine. Out: a `Machine`. The file is keyed by processor, features, number of
cores and onepass version. One that cannot be read is measured again; one that cannot be written is
only a loss of time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from onepass.core.errors import UserError
from onepass.core.files import write_text
from onepass.cost.machine import Machine, Roof
from onepass.loops.ir import Kernel
from onepass.runtime.host import available_cores, caches, cpu_model
from onepass.runtime.probe import measure_roofs
from onepass.runtime.workers import worker_count
from onepass.targets.cache import default_directory
from onepass.targets.llvm.compile import LinkedCode, compile_ir, link
from onepass.targets.llvm.description import describe_host
from onepass.targets.llvm.emit import emit, symbol_of

_FORMAT = 5


def measure_machine(fresh: bool = False, workers: int | None = None) -> Machine:
    """This machine with its roofs for one worker and for `workers` (default: all that may be used).

    Takes them from the cache unless `fresh`, or measures (two to ten seconds) and stores them. Raises
    OptionError for a worker count that makes no sense.
    """
    path = machine_path(workers)
    kept = None if fresh else load_machine(path)
    if kept is not None:
        return kept
    target, sizes = describe_host(), caches()

    def build(kernels: Sequence[Kernel]) -> LinkedCode:
        return link({symbol_of(kernel): compile_ir(emit(kernel, target), target) for kernel in kernels})

    date = datetime.now(UTC).isoformat(timespec="seconds")
    roofs, l3_bytes = measure_roofs(
        build, target.vector_bits, target.vector_registers, sizes, _counts(workers), date
    )
    machine = Machine(
        cpu_model(), target.isa, target.vector_bits, target.vector_registers, available_cores(),
        sizes.l1, sizes.l2, l3_bytes, roofs,
    )  # fmt: skip
    with contextlib.suppress(UserError):  # what cannot be kept is measured again
        write_text(path, machine_to_json(machine))
    return machine


def _counts(workers: int | None) -> list[int]:
    """The worker counts to measure: more than there are cores reach no higher roof, only later."""
    return sorted({1, min(worker_count(workers), available_cores())})


def machine_to_json(machine: Machine) -> str:
    """The machine as JSON; `machine_from_json` gives it back."""
    return json.dumps({"format": _FORMAT, **asdict(machine)}, indent=1)


def machine_from_json(text: str) -> Machine:
    """Inverse of `machine_to_json`; raises ValueError, KeyError or TypeError for anything else."""
    data = json.loads(text)
    if data["format"] != _FORMAT:
        raise ValueError(f"machine file of format {data['format']}")
    roofs = tuple(Roof(**{field.name: row[field.name] for field in fields(Roof)}) for row in data["roofs"])
    if not all(isinstance(roof.value, float) and 0 < roof.value < math.inf for roof in roofs):
        raise ValueError("a roof that is no positive number")
    rest = {field.name: data[field.name] for field in fields(Machine) if field.name != "roofs"}
    for name, value in rest.items():
        if not isinstance(value, str if name in ("name", "isa") else int):
            raise TypeError(f"{name} is {value!r}")
    return Machine(**rest, roofs=roofs)


def load_machine(path: Path) -> Machine | None:
    """The machine kept in `path`; None when there is none that can be read."""
    try:
        return machine_from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def machine_path(workers: int | None = None) -> Path:
    """Where the roofs for `workers` are kept; raises as `measure_machine` does."""
    target, counts = describe_host(), tuple(_counts(workers))
    parts = (cpu_model(), target.cpu, target.features, available_cores(), counts, version("onepass"))
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return default_directory() / f"machine-{key}.json"
