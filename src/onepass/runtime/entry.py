"""The native entry point: all workers enter it once per model call and run the launches in step.

Goes in: an array of launches `{function, argument pointers}`, and the block that the workers of one pool
share. It is the same for every model. Workers between two calls wait at the barrier that starts the next.

Barrier: arrivals are counted, the last one advances a generation. Who waits spins for a bounded number
of pauses, then yields the core, then sleeps: a worker without a core holds nobody's core for long, and an
idle pool uses no time. A worker that finds itself on its caller's core moves to another one: systems leave
both there for many milliseconds, and a barrier then costs a change of threads (9 µs, not 0.04, measured).
A job carries a floating-point mode: each worker sets it before the launches and puts its own back after them.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from string import Template

import numpy as np
import numpy.typing as npt

from onepass.runtime.memory import aligned_empty
from onepass.targets.llvm.compile import compile_ir, link
from onepass.targets.llvm.description import TargetDescription, describe_host
from onepass.targets.llvm.statements import SHARED_LOOPS

# Bytes in the block: what is written in every barrier on lines of its own. Arrivals are counted at 0.
_AT = {
    "generation": 64, "sleepers": 128, "job": 192, "workers": 224, "cpu": 232, "mutex": 256, "wake": 320,
    "counts": 384,
}  # fmt: skip
_SPINS, _YIELDS = 300, 100
"""About 10 and 100 µs. A barrier that takes longer is worth the 50 µs that waking up takes."""
_CLOCK_MONOTONIC = 6 if sys.platform == "darwin" else 1
_PAUSES = {"x86_64": "@llvm.x86.sse2.pause()", "aarch64": "@llvm.aarch64.isb(i32 15)",
           "arm64": "@llvm.aarch64.isb(i32 15)"}  # fmt: skip
# The modes that compute subnormal numbers (round to nearest, no traps) and that flush them to zero, in
# results and in operands: FTZ and DAZ of x86's MXCSR, FZ of ARM's FPCR. Threads inherit the mode of whoever
# starts them, and libraries change it, so a job never runs in the mode that a worker happens to have.
_X86_MODES, _ARM_MODES = (0x1F80, 0x9FC0), (0, 1 << 24)
_X86_MODE = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal i64 @mode() {
  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %word = load i32, ptr %at
  %mode = zext i32 %word to i64
  ret i64 %mode
}
define internal void @set_mode(i64 %mode) {
  %at = alloca i32
  %word = trunc i64 %mode to i32
  store i32 %word, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}
"""
_ARM_MODE = """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @mode() {
  %mode = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %mode
}
define internal void @set_mode(i64 %mode) {
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}
"""
_NO_MODE = """
define internal i64 @mode() { ret i64 0 }
define internal void @set_mode(i64 %mode) { ret void }
"""
_MODES = {"x86_64": (_X86_MODES, _X86_MODE), "aarch64": (_ARM_MODES, _ARM_MODE),
          "arm64": (_ARM_MODES, _ARM_MODE)}  # fmt: skip
_AFFINITY = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
"""
_NO_AFFINITY = """
define internal i32 @sched_getcpu() { ret i32 -1 }
define internal i32 @sched_getaffinity(i32, i64, ptr) { ret i32 -1 }
define internal i32 @sched_setaffinity(i32, i64, ptr) { ret i32 -1 }
"""
_TEXT = """
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

; The caller (worker 0) leaves a job, runs it and returns; the others run jobs until one has count -1.
define void @onepass_enter(ptr %pool, i64 %worker, ptr %launches, i64 %count, ptr %times, i64 %mode) {
entry:
  %is_caller = icmp eq i64 %worker, 0
  %cpu_at = getelementptr i8, ptr %pool, i64 $cpu
  br i1 %is_caller, label %post, label %meet
post:
  %job0 = insertvalue {ptr, i64, ptr, i64} poison, ptr %launches, 0
  %job1 = insertvalue {ptr, i64, ptr, i64} %job0, i64 %count, 1
  %job2 = insertvalue {ptr, i64, ptr, i64} %job1, ptr %times, 2
  %job = insertvalue {ptr, i64, ptr, i64} %job2, i64 %mode, 3
  %job_at = getelementptr i8, ptr %pool, i64 $job
  store {ptr, i64, ptr, i64} %job, ptr %job_at
  %cpu = call i32 @sched_getcpu()
  store i32 %cpu, ptr %cpu_at
  call void @barrier(ptr %pool, ptr null)
  %ignored = call i1 @run(ptr %pool, i64 0)
  br label %exit
meet:
  call void @barrier(ptr %pool, ptr null)
  %callers = load i32, ptr %cpu_at
  call void @leave(i32 %callers)
  %stop = call i1 @run(ptr %pool, i64 %worker)
  br i1 %stop, label %exit, label %meet
exit:
  ret void
}

; The launches with a barrier after each. Worker 0 notes the time before the first; the last worker to be done
; with a launch, whoever it is, notes its end.
define internal i1 @run(ptr %pool, i64 %worker) {
entry:
  %job_at = getelementptr i8, ptr %pool, i64 $job
  %job = load {ptr, i64, ptr, i64}, ptr %job_at
  %launches = extractvalue {ptr, i64, ptr, i64} %job, 0
  %count = extractvalue {ptr, i64, ptr, i64} %job, 1
  %times = extractvalue {ptr, i64, ptr, i64} %job, 2
  %mode = extractvalue {ptr, i64, ptr, i64} %job, 3
  %workers_at = getelementptr i8, ptr %pool, i64 $workers
  %workers = load i64, ptr %workers_at
  %wanted = icmp ne ptr %times, null
  %first = icmp eq i64 %worker, 0
  %timed = and i1 %wanted, %first
  %own = call i64 @mode()
  call void @set_mode(i64 %mode)
  br i1 %timed, label %stamp, label %next
stamp:
  %ignored = call i32 @clock_gettime(i32 $clock, ptr %times)
  br label %next
next:
  %i = phi i64 [0, %entry], [0, %stamp], [%after, %launch]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %launch, label %exit
launch:
  %launch_at = getelementptr {ptr, ptr}, ptr %launches, i64 %i
  %call = load {ptr, ptr}, ptr %launch_at
  %function = extractvalue {ptr, ptr} %call, 0
  %args = extractvalue {ptr, ptr} %call, 1
  ; Two sets of counts take turns: nobody looks at the other one, that of the launch before, any more.
  %turn = and i64 %i, 1
  %other = xor i64 %turn, 1
  %taken = call ptr @counts(ptr %pool, i64 %turn, i64 0, i64 %workers)
  call void @clear(ptr %pool, i64 %other, i64 %worker, i64 %workers)
  call void %function(ptr %args, i64 %worker, i64 %workers, ptr %taken)
  %after = add i64 %i, 1
  %end_at = getelementptr {i64, i64}, ptr %times, i64 %after
  %time_at = select i1 %wanted, ptr %end_at, ptr null
  call void @barrier(ptr %pool, ptr %time_at)
  br label %next
exit:
  call void @clear(ptr %pool, i64 0, i64 %worker, i64 %workers)
  call void @clear(ptr %pool, i64 1, i64 %worker, i64 %workers)
  call void @set_mode(i64 %own)
  %stop = icmp slt i64 %count, 0
  ret i1 %stop
}

; What each worker's iterations of each loop are counted in, as kernels take them: of a set, from a worker on.
define internal ptr @counts(ptr %pool, i64 %set, i64 %worker, i64 %workers) {
  %sets = mul i64 %set, %workers
  %at = add i64 %sets, %worker
  %all = getelementptr i8, ptr %pool, i64 $counts
  %found = getelementptr [$loops x i64], ptr %all, i64 %at
  ret ptr %found
}

define internal void @clear(ptr %pool, i64 %set, i64 %worker, i64 %workers) {
  %own = call ptr @counts(ptr %pool, i64 %set, i64 %worker, i64 %workers)
  store [$loops x i64] zeroinitializer, ptr %own
  ret void
}

define internal void @barrier(ptr %pool, ptr %time_at) {
entry:
  %generation_at = getelementptr i8, ptr %pool, i64 $generation
  %sleepers_at = getelementptr i8, ptr %pool, i64 $sleepers
  %workers_at = getelementptr i8, ptr %pool, i64 $workers
  %mutex = getelementptr i8, ptr %pool, i64 $mutex
  %wake = getelementptr i8, ptr %pool, i64 $wake
  %old = load atomic i64, ptr %generation_at monotonic, align 8
  %before = atomicrmw add ptr %pool, i64 1 acq_rel
  %workers = load atomic i64, ptr %workers_at monotonic, align 8
  %here = add i64 %before, 1
  %last = icmp eq i64 %here, %workers
  br i1 %last, label %full, label %look
full:
  %wanted = icmp ne ptr %time_at, null
  br i1 %wanted, label %stamp, label %release
stamp:
  %ignored = call i32 @clock_gettime(i32 $clock, ptr %time_at)
  br label %release
release:
  store atomic i64 0, ptr %pool monotonic, align 8
  %new = add i64 %old, 1
  store atomic i64 %new, ptr %generation_at seq_cst, align 8
  %sleepers = load atomic i64, ptr %sleepers_at seq_cst, align 8
  %asleep = icmp ne i64 %sleepers, 0
  br i1 %asleep, label %rouse, label %exit
rouse:
  %r0 = call i32 @pthread_mutex_lock(ptr %mutex)
  %r1 = call i32 @pthread_cond_broadcast(ptr %wake)
  %r2 = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %exit
look:
  %tries = phi i64 [0, %entry], [%more, %spin], [%more, %yield]
  %more = add i64 %tries, 1
  %now = load atomic i64, ptr %generation_at acquire, align 8
  %moved = icmp ne i64 %now, %old
  br i1 %moved, label %exit, label %rest
rest:
  %short = icmp ult i64 %tries, $spins
  br i1 %short, label %spin, label %long
spin:
  $pause
  br label %look
long:
  %fair = icmp ult i64 %tries, $tries
  br i1 %fair, label %yield, label %sleep
yield:
  %r3 = call i32 @sched_yield()
  br label %look
sleep:
  %r4 = call i32 @pthread_mutex_lock(ptr %mutex)
  %r5 = atomicrmw add ptr %sleepers_at, i64 1 seq_cst
  br label %check
check:
  %late = load atomic i64, ptr %generation_at seq_cst, align 8
  %still = icmp eq i64 %late, %old
  br i1 %still, label %wait, label %awake
wait:
  %r6 = call i32 @pthread_cond_wait(ptr %wake, ptr %mutex)
  br label %check
awake:
  %r7 = atomicrmw sub ptr %sleepers_at, i64 1 seq_cst
  %r8 = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %exit
exit:
  ret void
}

; Takes `callers` out of this thread's processors and puts it back: the thread has then moved.
define internal void @leave(i32 %callers) {
entry:
  %all = alloca [128 x i8]
  %mine = call i32 @sched_getcpu()
  %same = icmp eq i32 %mine, %callers
  %known = icmp ult i32 %mine, 1024
  %move = and i1 %same, %known
  br i1 %move, label %ask, label %exit
ask:
  %status = call i32 @sched_getaffinity(i32 0, i64 128, ptr %all)
  %failed = icmp slt i32 %status, 0
  br i1 %failed, label %exit, label %go
go:
  %at = lshr i32 %mine, 3
  %byte_at = getelementptr i8, ptr %all, i32 %at
  %byte = load i8, ptr %byte_at
  %low = and i32 %mine, 7
  %place = trunc i32 %low to i8
  %bit = shl i8 1, %place
  %others = xor i8 %byte, %bit
  store i8 %others, ptr %byte_at
  %r0 = call i32 @sched_setaffinity(i32 0, i64 128, ptr %all)
  store i8 %byte, ptr %byte_at
  %r1 = call i32 @sched_setaffinity(i32 0, i64 128, ptr %all)
  br label %exit
exit:
  ret void
}
"""


class Entry:
    """`enter(block, worker, launches, count, times, mode)`, which releases Python's lock while it runs.

    Addresses, but for three numbers. `times` is 0, or room for `count + 1` pairs of int64; `mode` is one of
    `modes`, the first of which computes subnormal numbers, the second flushes them to zero.
    """

    def __init__(self) -> None:
        target = describe_host()
        self.modes, text = entry_text(target)
        self._code = link({"onepass_enter": compile_ir(text, target)})
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(None, pointer, word, pointer, word, pointer, word)
        self.enter = kind(self._code.address("onepass_enter"))


def entry_text(target: TargetDescription) -> tuple[tuple[int, int], str]:
    """The two modes of the processor, as `Entry` has them, and LLVM IR with the function `onepass_enter`."""
    processor = target.triple.split("-")[0]
    pause = _PAUSES.get(processor)
    modes, mode = _MODES.get(processor, ((0, 0), _NO_MODE))
    numbers = {
        **_AT, "loops": SHARED_LOOPS, "spins": _SPINS, "tries": _SPINS + _YIELDS, "clock": _CLOCK_MONOTONIC,
        "pause": f"call void {pause}" if pause else "fence acquire",
    }  # fmt: skip
    declared = "declare void " + pause.replace("i32 15", "i32") if pause else ""
    affinity = _AFFINITY if sys.platform == "linux" else _NO_AFFINITY
    return modes, "\n".join((Template(_TEXT).substitute(numbers), affinity, mode, declared, ""))


@lru_cache(maxsize=1)
def entry() -> Entry:
    """The entry point of this process, compiled on first use (about 10 ms)."""
    return Entry()


class Block:
    """The memory that the workers of a pool share, at `address`."""

    def __init__(self, workers: int) -> None:
        words = _AT["counts"] // 8 + 2 * workers * SHARED_LOOPS
        self._words: npt.NDArray[np.int64] = aligned_empty((words,), np.dtype(np.int64))
        self._words.fill(0)
        self.address = self._words.ctypes.data
        self.expect(workers)
        libc = ctypes.CDLL(None)
        libc.pthread_mutex_init(ctypes.c_void_p(self.address + _AT["mutex"]), None)
        libc.pthread_cond_init(ctypes.c_void_p(self.address + _AT["wake"]), None)

    def expect(self, workers: int) -> None:
        """How many workers a barrier waits for."""
        self._words[_AT["workers"] // 8] = workers
