"""Compiles many kernels on several cores, by helper processes beside this one.

llvmlite holds one lock a process. A helper is a fresh interpreter (no fork: the caller may have threads;
no multiprocessing: it would import the caller's main module again). It reads a target as JSON, then texts,
and writes an object for each; all as a size, then bytes. This process compiles too, from the first moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import IO

from onepass.targets.llvm.compile import compile_ir
from onepass.targets.llvm.description import TargetDescription

# Below this many lines of IR a helper has not started before the work is done.
LINES_FOR_HELPER = 6000
_Jobs = queue.SimpleQueue[tuple[int, str]]


def compile_many(texts: Sequence[str], target: TargetDescription, processes: int = 2) -> list[bytes]:
    """`compile_ir` of each text, in order, by at most `processes` processes."""
    jobs: _Jobs = queue.SimpleQueue()
    for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        jobs.put((i, texts[i]))
    out: dict[int, bytes] = {}
    helpers = 0
    if sum(text.count("\n") for text in texts) >= LINES_FOR_HELPER and sys.executable:
        helpers = min(processes, len(texts)) - 1
    threads = [threading.Thread(target=_feed, args=(jobs, target, out), daemon=True) for _ in range(helpers)]
    for thread in threads:
        thread.start()
    for i, text in _taken(jobs):
        out[i] = compile_ir(text, target)
    for thread in threads:
        thread.join()
    # A helper that died leaves its job undone.
    return [out[i] if i in out else compile_ir(text, target) for i, text in enumerate(texts)]


def _taken(jobs: _Jobs) -> Iterator[tuple[int, str]]:
    """The jobs that are left, each as it is taken."""
    with contextlib.suppress(queue.Empty):
        while True:
            yield jobs.get_nowait()


def _feed(jobs: _Jobs, target: TargetDescription, out: dict[int, bytes]) -> None:
    """Gives jobs to a helper until none is left; where it fails, the caller compiles the rest."""
    # -P: the current directory must not shadow a module; the path is the one that found this package.
    command = [sys.executable, "-P", "-m", "onepass.targets.llvm.parallel"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with (
        contextlib.suppress(OSError, EOFError),
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, env=environment) as helper,
    ):
        assert helper.stdin is not None and helper.stdout is not None
        _send(helper.stdin, json.dumps(asdict(target)).encode())
        # The helper answers once it has started: a job given earlier would only wait for it.
        _receive(helper.stdout)
        for i, text in _taken(jobs):
            _send(helper.stdin, text.encode())
            out[i] = _receive(helper.stdout)
        helper.stdin.close()


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    """The next message; EOFError at the end of the stream."""
    size = int.from_bytes(_exactly(stream, 8), "little")
    return _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """The helper: compiles what comes until the end of `source`."""
    with contextlib.suppress(EOFError):
        target = TargetDescription(**json.loads(_receive(source)))
        _send(sink, b"")
        while True:
            _send(sink, compile_ir(_receive(source).decode(), target))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
