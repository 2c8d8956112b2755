"""LLVM IR text to object code, and object code to callable addresses.

In: text from `emit`. Out: bytes that can be cached on disk, then `LinkedCode`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache

import llvmlite.binding as llvm  # type: ignore[import-untyped]

from onepass.core.errors import InternalError
from onepass.targets.llvm.description import TargetDescription

LONG_KERNEL_LINES = 900
CONSTANTS_STAY = "; constants stay where they are used\n"
"""First line of a text in which no constant may move out of the loop that uses it."""
_switching = threading.Lock()


@lru_cache(maxsize=1)
def _initialize() -> None:
    # The order in which a tile is emitted is the order that fits the registers. LLVM's machine scheduler
    # moves loads up until a 14x2 tile spills 255 times and halves its speed (docs/design/0003).
    llvm.set_option("onepass", "-enable-misched=false")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(target: TargetDescription) -> llvm.TargetMachine:
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="default"
    )


def _optimize(module: llvm.ModuleRef, machine: llvm.TargetMachine, size: int) -> None:
    """Runs LLVM's passes.

    A long kernel is an unrolled tile, whose values the emitter has already numbered and hoisted: a few
    passes give the same code as -O3 in a tenth of the time (5 against 50 ms for 1700 instructions).
    """
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    # The loops come tiled and unrolled as planned; LLVM must not unroll the nest again.
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    if size <= LONG_KERNEL_LINES:
        builder.getModulePassManager().run(module, builder)
        return
    passes = llvm.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_aggressive_dce_pass()
    passes.run(module, builder)


def _optimized(text: str, target: TargetDescription, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as error:
        raise InternalError("parse LLVM IR", str(error)) from error
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    _optimize(module, machine, text.count("\n"))
    return module


@contextlib.contextmanager
def _moving_constants(text: str) -> Iterator[None]:
    """Has LLVM move constants out of loops, but not in `text` that begins with `CONSTANTS_STAY`."""
    with _switching:  # the switch is one for the whole process
        off = "true" if text.startswith(CONSTANTS_STAY) else "false"
        llvm.set_option("onepass", f"-disable-machine-licm={off}")
        yield


def compile_ir(text: str, target: TargetDescription) -> bytes:
    """The object file of LLVM IR text, optimized; raises InternalError for text that is not LLVM IR."""
    machine = _machine(target)
    with _moving_constants(text):
        return bytes(machine.emit_object(_optimized(text, target, machine)))


def assembly(text: str, target: TargetDescription) -> str:
    """Assembly of the optimized code, with LLVM's comments on spills."""
    machine = _machine(target)
    machine.set_asm_verbosity(True)
    with _moving_constants(text):
        return str(machine.emit_assembly(_optimized(text, target, machine)))


class LinkedCode:
    """Compiled kernels loaded into this process; lives as long as this object."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        _initialize()
        module = llvm.parse_assembly("")
        machine = llvm.Target.from_default_triple().create_target_machine(codemodel="default", reloc="pic")
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._objects = [llvm.ObjectFileRef.from_data(data) for data in objects.values()]
        for item in self._objects:
            self._engine.add_object_file(item)
        self._engine.finalize_object()
        self._addresses = {symbol: self._engine.get_function_address(symbol) for symbol in objects}
        for symbol, address in self._addresses.items():
            if not address:
                raise InternalError("link", f"symbol '{symbol}' is not in its object")

    def address(self, symbol: str) -> int:
        """Address of `void SYMBOL(ptr args, i64 worker, i64 workers)`."""
        return int(self._addresses[symbol])


def link(objects: Mapping[str, bytes]) -> LinkedCode:
    """Loads the object of each symbol into this process."""
    return LinkedCode(objects)
