"""Kernels of tiles to machine code, ahead of time: no GPU and no driver is needed.

In: `TileKernel`s and the name of a GPU. Out: for each its binary and what it takes of the GPU, or the
reason why it cannot run, in words, so that the planner may choose another tile. Triton runs in processes
of its own, which stay for the next call; what they make is kept on disk. What is compiled has no names of
the user's: repeated layers are one kernel.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import hashlib
import importlib.metadata
import json
import os
import queue
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from onepass.core.errors import InternalError, OptionError
from onepass.cost.gpu import Resources, find_gpu, refusal
from onepass.loops.tile import TileKernel
from onepass.targets.cache import EntryCache

FORMAT = 2
FUNCTION = "kernel"  # the name of the function in the compiled code
_WORKER = Path(__file__).with_name("worker.py")
_SUFFIX = ".tile"
_POINTERS = {
    "float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64", "bool": "*i1",
    "int8": "*i8", "int16": "*i16", "int32": "*i32", "int64": "*i64",
    "uint8": "*u8", "uint16": "*u16", "uint32": "*u32", "uint64": "*u64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompiledTile:
    """A kernel as compiled for a GPU. `binary` is a cubin (NVIDIA) or an hsaco (AMD) of `FUNCTION`.

    `refusal` says why it cannot run, and is empty where it can; `resources` is None where no code was made.
    `matrix_instruction`: what its products run on in tensor cores, such as `wgmma.mma_async`; empty where
    it uses none. `seconds`: what compiling took, now or when it was `cached`.
    """

    kernel: TileKernel
    binary: bytes
    resources: Resources | None
    matrix_instruction: str
    refusal: str
    seconds: float
    cached: bool


def compile_tiles(kernels: Sequence[TileKernel], target: str, directory: Path | None) -> list[CompiledTile]:
    """Compiles for `target` (such as `cuda:sm_90`), each distinct kernel once; keeps results in `directory`.

    In the order of `kernels`. Raises OptionError for an unknown target and where Triton is missing, and
    InternalError for a kernel whose source is wrong.
    """
    gpu = find_gpu(target)
    version = _triton_version()
    cache = EntryCache(directory, _SUFFIX)
    keys, requests, answers = [], {}, {}
    for kernel in kernels:
        request = _request(kernel, target, gpu.warp_size)
        key = _key(request, version)
        keys.append(key)
        if key in requests or key in answers:
            continue
        entry = cache.look_up(kernel.name, key)
        if entry is None:
            requests[key] = request
        else:
            answers[key] = _Answer.read(entry, cached=True)
    if requests:
        with ThreadPoolExecutor(min(_cores(), len(requests))) as threads:
            for key, answer in zip(requests, threads.map(_ask, requests.values()), strict=True):
                answers[key] = answer
                if answer.lasting:
                    cache.keep(key, key, answer.entry())
    return [_compiled(kernel, answers[key], target) for kernel, key in zip(kernels, keys, strict=True)]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the worker said: its fields (see `worker.py`) and the binary."""

    fields: dict[str, Any]
    binary: bytes
    cached: bool = False
    lasting: bool = True  # a crash may have come from outside, such as a lack of memory

    @classmethod
    def read(cls, entry: bytes, cached: bool) -> _Answer:
        head, _, binary = entry.partition(b"\n")
        return cls(json.loads(head), binary, cached)

    def entry(self) -> bytes:
        return json.dumps(self.fields).encode() + b"\n" + self.binary


def _compiled(kernel: TileKernel, answer: _Answer, target: str) -> CompiledTile:
    fields = dict(answer.fields)
    if "error" in fields:
        raise InternalError("compile for " + target, f"kernel {kernel.name}: {fields['error']}")
    seconds = fields.pop("seconds", 0.0)
    if "refusal" in fields:
        return CompiledTile(kernel, b"", None, "", fields["refusal"], seconds, answer.cached)
    instruction = fields.pop("matrix_instruction")
    resources = Resources(tensor_cores=bool(instruction), **fields)
    why = refusal(resources, kernel.warps, find_gpu(target))
    return CompiledTile(kernel, answer.binary, resources, instruction, why, seconds, answer.cached)


def _request(kernel: TileKernel, target: str, warp_size: int) -> dict[str, Any]:
    """All that the compiled code depends on, Triton itself apart."""
    return {
        "name": FUNCTION, "source": canonical(kernel), "target": target, "warp_size": warp_size,
        "types": [_POINTERS[param.dtype.name] for param in kernel.params],
        "warps": kernel.warps, "stages": kernel.stages, "max_registers": kernel.max_registers,
    }  # fmt: skip


def canonical(kernel: TileKernel) -> str:
    """The source without docstrings and names of its own: equal for kernels that differ in these alone."""
    try:
        module = ast.parse(kernel.source)
    except SyntaxError as error:
        raise InternalError("compile for a GPU", f"kernel {kernel.name}: {error}") from error
    for function in module.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        if ast.get_docstring(function) is not None:
            function.body = function.body[1:]
        if function.name == kernel.name:
            _rename(function)
    return ast.unparse(module)


def _rename(function: ast.FunctionDef) -> None:
    """Calls the function `FUNCTION`, and its parameters and variables by numbers in order of appearance."""
    function.name = FUNCTION
    names = {arg.arg: f"p{at}" for at, arg in enumerate(function.args.args)}
    for arg in function.args.args:
        arg.arg = names[arg.arg]
    used = [node for statement in function.body for node in ast.walk(statement) if isinstance(node, ast.Name)]
    for node in used:
        if isinstance(node.ctx, ast.Store):
            names.setdefault(node.id, f"v{len(names)}")
    for node in used:
        node.id = names.get(node.id, node.id)


def _key(request: dict[str, Any], version: str) -> str:
    parts = (str(FORMAT), version, _WORKER.read_text(encoding="utf-8"), json.dumps(request, sort_keys=True))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _triton_version() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise _cannot("Triton, which compiles for GPUs, is not installed") from None


def _cannot(why: str) -> OptionError:
    return OptionError("cannot compile for a GPU", why=why, remedy="pip install 'onepass[cuda]'")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """One process that compiles; started when first asked, and again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    def ask(self, request: dict[str, Any]) -> _Answer:
        """What comes of one request. Raises OptionError where Triton cannot be loaded."""
        process = self._process or self._start()
        assert process.stdin and process.stdout
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            head = process.stdout.readline()
            if not head:
                code = process.wait()
                self.stop()
                refused = {"refusal": f"the compiler process ended with code {code}"}
                return _Answer(refused, b"", lasting=False)
            fields = json.loads(head)
            return _Answer(fields, process.stdout.read(fields.pop("size")))
        except BaseException:  # an interrupt: the answer to come is not that of the next request
            process.kill()
            self.stop()
            raise

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process:
            self._process.communicate()  # it ends where its input does
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        # Settings of Triton would change what is compiled, TRITON_INTERPRET most of all.
        environment = {
            name: value for name, value in os.environ.items() if "TRITON" not in name and "PTXAS" not in name
        }
        environment["TRITON_DUMP_PTXAS_LOG"] = "1"
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
        assert process.stdout
        self._process = process
        if not process.stdout.readline():  # it says that it is ready
            _, errors = process.communicate()
            self._process = None
            raise _cannot(f"Triton cannot be loaded: {errors.decode('utf-8', 'replace').strip()[-500:]}")
        return process


@lru_cache(maxsize=1)
def _pool(process: int) -> queue.LifoQueue[_Worker]:
    """The idle workers of this process (after a fork the child needs its own), the last used first."""
    workers: queue.LifoQueue[_Worker] = queue.LifoQueue()
    for _ in range(_cores()):
        workers.put(_Worker())
    return workers


def _ask(request: dict[str, Any]) -> _Answer:
    pool = _pool(os.getpid())
    worker = pool.get()
    try:
        return worker.ask(request)
    finally:
        pool.put(worker)
