"""The process that compiles: reads requests of kernels on stdin and writes what came of each on stdout.

A program of its own, as Triton's interpreter and its compiler cannot share a process. It says `ready`; then
a request is a line of JSON (`_request` in `compile.py`), an answer a line of JSON and `size` bytes of binary.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource, CompilationError  # type: ignore[import-untyped]

MATRIX_INSTRUCTION = re.compile(r"\b(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync|v_mfma)")
LOG_BYTES = 2000  # of what the compiler printed, told with a failure


def main() -> None:
    """Answers requests until stdin ends."""
    with tempfile.TemporaryDirectory(prefix="onepass-") as folder, os.fdopen(os.dup(1), "wb") as answers:
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder, "cache"))
        with open(Path(folder, "log"), "w+b") as log:
            for descriptor in (1, 2):  # the compiler prints to both
                os.dup2(log.fileno(), descriptor)
            answers.write(b"ready\n")
            answers.flush()
            for line in sys.stdin:
                _printed(log)
                log.seek(0)
                log.truncate()
                fields, binary = _answer(json.loads(line), Path(folder), log)
                answers.write(json.dumps({**fields, "size": len(binary)}).encode() + b"\n" + binary)
                answers.flush()
                shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)


def _answer(request: dict[str, Any], folder: Path, log: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Fields `error` (the source is wrong), `refusal` (the compiler would not), or what the kernel takes."""
    try:
        function = _load(request["source"], request["name"], folder)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}, b""
    start = time.perf_counter()
    try:
        kernel = _compile(function, request)
    except CompilationError as error:
        return {"error": str(error)}, b""
    except Exception as error:
        return {"refusal": f"{type(error).__name__}: {error} {_printed(log)}".strip()[:LOG_BYTES]}, b""
    seconds = time.perf_counter() - start
    read = _amd_resources if "amdgcn" in kernel.asm else _nvidia_resources
    return {**read(kernel, _printed(log)), "seconds": seconds}, kernel.kernel


def _load(source: str, name: str, folder: Path) -> Any:
    """The function `name` of a module; Triton reads its text from the file that it stands in."""
    path = folder / f"kernel_{hashlib.sha256(source.encode()).hexdigest()}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _compile(function: Any, request: dict[str, Any]) -> Any:
    """Ahead of time, for a GPU that need not be there; pointers are aligned to 16 bytes."""
    backend, arch = request["target"].split(":")
    number = int(arch.removeprefix("sm_")) if backend == "cuda" else arch
    target = GPUTarget(backend, number, request["warp_size"])
    if len(function.arg_names) != len(request["types"]):
        raise CompilationError(None, None, f"{len(request['types'])} pointers for {function.arg_names}")
    options = {
        "num_warps": request["warps"], "num_stages": request["stages"],
        "enable_fp_fusion": False,  # only the fused multiply-adds that are written: results do not vary
        "enable_reflect_ftz": False,  # NVIDIA's library functions keep subnormal numbers
    }  # fmt: skip
    if most := request["max_registers"]:
        # AMD's compiler takes a limit as the waves that shall share the 512 registers of a SIMD's lane.
        options |= {"maxnreg": most} if backend == "cuda" else {"waves_per_eu": max(1, min(8, 512 // most))}
    source = ASTSource(
        fn=function, signature=dict(zip(function.arg_names, request["types"], strict=True)),
        attrs={(index,): [["tt.divisibility", 16]] for index in range(len(function.arg_names))},
    )  # fmt: skip
    return triton.compile(source, target=target, options=options)


def _nvidia_resources(kernel: Any, printed: str) -> dict[str, Any]:
    """Registers and spills as `ptxas -v` told of this very run; nothing else tells spilled bytes."""
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", printed)
    return {
        "registers": max(map(int, re.findall(r"Used (\d+) registers", printed))),
        "spill_bytes": sum(int(stores) + int(loads) for stores, loads in spills),
        "shared_bytes": kernel.metadata.shared,
        "matrix_instruction": _matrix_instruction(kernel.asm["ptx"]),
        "tensor_columns": kernel.metadata.tmem_size or 0,
    }


def _amd_resources(kernel: Any, printed: str) -> dict[str, Any]:
    """From the metadata in the assembly. Scratch memory is stored once and loaded once at least."""
    text = kernel.asm["amdgcn"]

    def counted(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", text)
        assert found, key
        return int(found[1])

    return {
        "registers": counted("vgpr_count"), "spill_bytes": 2 * counted("private_segment_fixed_size"),
        "shared_bytes": kernel.metadata.shared, "matrix_instruction": _matrix_instruction(text),
        "tensor_columns": 0,
    }  # fmt: skip


def _matrix_instruction(text: str) -> str:
    found = MATRIX_INSTRUCTION.search(text)
    return found[0] if found else ""


def _printed(log: IO[bytes]) -> str:
    sys.stdout.flush()
    log.seek(0)
    return log.read().decode("utf-8", "replace")


if __name__ == "__main__":
    main()
