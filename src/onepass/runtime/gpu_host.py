"""The GPU as PyTorch tells of it: whether there is one, what it can do, how much memory is left.

In: a device's name. Out: the modules and the device, or an error that says what to install or choose.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from onepass.core.errors import OptionError, UserError

LEAST_CAPABILITY = (8, 0)
"""What Triton generates code for: NVIDIA's Ampere and later (Triton's README, "Compatibility")."""
CPU_REMEDY = "or leave the target out: the CPU needs no GPU"


def require(name: str) -> Any:
    """The module `name` of the extra `cuda`; raises UserError where it is missing."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: a library of CUDA is missing
        raise UserError(
            f"{name} is not available", why=str(error),
            remedy=f"pip install 'onepass[cuda]', {CPU_REMEDY}",
        ) from error  # fmt: skip


def interpreted() -> bool:
    """Whether Triton interprets its kernels in this process, which its environment variable decides."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def find_device(torch: Any, name: str) -> Any:
    """The torch device called `name`: `cuda`, `cuda:1`, or `cpu` where Triton interprets.

    Raises OptionError where there is none, or one that Triton has no code for.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"'{name}' is not a device", why=str(error), remedy="choose cuda") from error
    if device.type == "cpu" and interpreted():
        return device
    if device.type != "cuda":
        raise OptionError(
            f"kernels for a GPU cannot run on '{name}'",
            why="on a CPU they run in Triton's interpreter alone, for tests: TRITON_INTERPRET=1",
            remedy=f"choose cuda, {CPU_REMEDY}",
        )
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        raise OptionError(
            "no GPU is present",
            why="PyTorch finds no device or no driver" if built else "this PyTorch is made for CPUs alone",
            remedy=f"use a machine with a GPU, {CPU_REMEDY}" if built
            else f"install PyTorch for CUDA, {CPU_REMEDY}",
        )  # fmt: skip
    count, number = torch.cuda.device_count(), device.index or 0
    if number >= count:
        remedy = f"choose one of cuda:0 to cuda:{count - 1}"
        raise OptionError(f"there is no GPU {number}", why=f"PyTorch finds {count}", remedy=remedy)
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < LEAST_CAPABILITY:
        raise OptionError(
            f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}",
            why=f"Triton generates code for {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} and later",
            remedy=f"use a newer GPU, {CPU_REMEDY}",
        )
    return torch.device("cuda", number)


def present_gpu() -> str:
    """The GPU of this machine as a target, such as `cuda:sm_90`; raises UserError where there is none."""
    torch = require("torch")
    device = find_device(torch, "cuda")
    if torch.version.hip is not None:
        return f"hip:{torch.cuda.get_device_properties(device).gcnArchName.partition(':')[0]}"
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda:sm_{major}{minor}"


def device_of(target: str) -> str:
    """The torch device for kernels compiled for `target`: `cpu` where Triton interprets.

    Raises UserError where the GPU that is present, if one is, is another.
    """
    if interpreted():
        return "cpu"
    found = present_gpu()
    if found != target:
        raise OptionError(
            f"the model is compiled for {target}", why=f"the GPU that is present is {found}",
            remedy="compile it for the target cuda, the GPU that is present",
        )  # fmt: skip
    return "cuda"


def check_memory(torch: Any, device: Any, needed: int) -> None:
    """Raises UserError where the GPU has fewer than `needed` bytes left, before any is allocated."""
    if device.type != "cuda":
        return
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    if needed > free + kept:
        raise out_of_memory(torch, device, needed, f"{free + kept:,} of its {total:,} bytes are free")


def out_of_memory(torch: Any, device: Any, needed: int, why: str) -> UserError:
    """The error for a model whose `needed` bytes do not fit."""
    return UserError(
        f"the model needs {needed:,} bytes on the GPU",
        where=torch.cuda.get_device_name(device),
        why=why,
        remedy=f"use a smaller batch or smaller images, free memory that other programs hold, {CPU_REMEDY}",
    )
