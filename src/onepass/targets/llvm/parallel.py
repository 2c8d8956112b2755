"""Compiles many kernels on several cores, by helper processes beside this one.

llvmlite holds one lock a process. A helper is a fresh interpreter (no fork: the caller may have threads;
no multiprocessing: it would import the caller's main module again) that reads IR from its standard input
and writes objects to its standard output. This process compiles too, from the first moment.
"""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from onepass.targets.llvm.compile import CompiledCode, compile_ir
from onepass.targets.llvm.description import TargetDescription

# Below this many lines of IR a helper has not started before the work is done.
LINES_FOR_HELPER = 6000
_Job = tuple[int, str]


def compile_many(
    texts: Sequence[str], target: TargetDescription, processes: int = 2, count_spills: bool = False
) -> list[CompiledCode]:
    """`compile_ir` of each text, in order, by at most `processes` processes."""
    jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
    for i in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        jobs.put((i, texts[i]))
    out: dict[int, CompiledCode] = {}
    helpers = 0
    if sum(text.count("\n") for text in texts) >= LINES_FOR_HELPER and sys.executable:
        helpers = min(processes, len(texts)) - 1
    threads = [
        threading.Thread(target=_feed_helper, args=(jobs, target, count_spills, out), daemon=True)
        for _ in range(helpers)
    ]
    for thread in threads:
        thread.start()
    _drain(jobs, target, count_spills, out)
    for thread in threads:
        thread.join()
    # A helper that died leaves its job undone.
    for i, text in enumerate(texts):
        if i not in out:
            out[i] = compile_ir(text, target, count_spills)
    return [out[i] for i in range(len(texts))]


def _drain(
    jobs: queue.SimpleQueue[_Job], target: TargetDescription, spills: bool, out: dict[int, CompiledCode]
) -> None:
    while True:
        try:
            i, text = jobs.get_nowait()
        except queue.Empty:
            return
        out[i] = compile_ir(text, target, spills)


def _feed_helper(
    jobs: queue.SimpleQueue[_Job], target: TargetDescription, spills: bool, out: dict[int, CompiledCode]
) -> None:
    # -P: the current directory must not shadow a module; the path is the one that found this package.
    command = [sys.executable, "-P", "-m", "onepass.targets.llvm.parallel"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment
        ) as helper:
            assert helper.stdin is not None and helper.stdout is not None
            # The helper says when it has started: a job given earlier would only wait for it.
            if _receive(helper.stdout) is None:
                return
            while True:
                try:
                    i, text = jobs.get_nowait()
                except queue.Empty:
                    break
                _send(helper.stdin, pickle.dumps((text, target, spills)))
                answer = _receive(helper.stdout)
                if answer is None:
                    break
                out[i] = pickle.loads(answer)
            helper.stdin.close()
    except OSError:
        return  # no process to be had, or it went away: the caller compiles what is left


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = struct.unpack("<Q", head)[0]
    data = stream.read(size)
    return data if len(data) == size else None


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """The helper: compiles what comes until the end of `source`."""
    _send(sink, b"ready")
    while (message := _receive(source)) is not None:
        text, target, spills = pickle.loads(message)
        _send(sink, pickle.dumps(compile_ir(text, target, spills)))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
