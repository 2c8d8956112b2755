"""A second reading of memory traffic: what misses simulated caches, beside what the plan predicts.

Run: .venv/bin/python benchmarks/cache_simulation.py zoo:NAME [--shape INPUT=1x3x9x9] [--l3-mib N] [--json].
A model is compiled for AVX2 (valgrind knows no AVX-512) and one worker, unfused and fused, and its kernels
are linked into a small C program. That runs two inferences under callgrind, cachegrind's simulator with
counts for every launch: the first inference fills the caches, the second counts.
The simulator has two levels, so each program runs twice. What misses a last level of the size of L2 is what
the plan expects of L3 and memory; of the size of L3, what it expects of memory. Bytes are misses x 64: lines
read, and lines fetched to be written. So counts the plan: bytes read + bytes written. Neither counts the
write-back of changed lines. The simulator has no prefetch, replaces the least recently used, and is alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from onepass.cli.common import open_model
from onepass.compare.setup import Setup, inputs_of
from onepass.core.errors import UserError
from onepass.frontends.onnx_import import import_onnx
from onepass.loops.ir import Kernel
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled
from onepass.report.terminal import Terminal, table
from onepass.report.units import bytes_text
from onepass.runtime.arena import alignment_of
from onepass.runtime.program import Slot
from onepass.targets.llvm.description import TargetDescription, describe_host
from onepass.targets.llvm.emit import emit
from onepass.targets.llvm.parallel import compile_many
from onepass.targets.llvm.statements import SHARED_LOOPS

LINE = 64
DRIVER = """
#include <fcntl.h>
#include <sys/mman.h>
#include <valgrind/callgrind.h>
typedef void kernel(void **arguments, long worker, long workers, long *taken);
%(declarations)s
static kernel *const kernels[] = {%(kernels)s};
static const long first[] = {%(first)s}, offsets[] = {%(offsets)s};
int main(int count, char **words) {
    static void *arguments[sizeof offsets / sizeof *offsets];
    char *image = mmap(0, %(size)dL, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR), 0);
    if (image == MAP_FAILED) return 1;
    for (long i = 0; i < sizeof offsets / sizeof *offsets; i++) arguments[i] = image + offsets[i];
    for (int run = 0; run < 2; run++) {
        CALLGRIND_ZERO_STATS;
        for (long i = 0; i < sizeof kernels / sizeof *kernels; i++) {
            long taken[%(loops)d] = {0};
            kernels[i](arguments + first[i], 0, 1, taken);
            if (run) CALLGRIND_DUMP_STATS_AT("launch");
        }
    }
    return 0;
}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of one launch that miss L1, L2 and L3, predicted (`plan`) and simulated (`seen`)."""

    region: str
    form: str
    plan: tuple[int, int, int]
    seen: tuple[int, int, int]


def missing_tools() -> str:
    """What has to be installed before anything can be simulated; '' when all is there."""
    if not shutil.which("valgrind") or not shutil.which("cc"):
        return "valgrind and a C compiler, cc, are needed: install the packages valgrind and gcc"
    include = "#include <valgrind/callgrind.h>"
    probe = subprocess.run(["cc", "-E", "-"], input=include, capture_output=True, text=True, check=False)
    return "valgrind/callgrind.h is missing: install valgrind's headers" if probe.returncode else ""


def geometry(size_bytes: int, ways: int) -> str:
    """A cache as valgrind takes it, `size,ways,line`: a power of two of sets with at least `ways` ways."""
    lines = size_bytes // LINE
    sets = 1 << ((lines // ways).bit_length() - 1)
    return f"{lines // sets * sets * LINE},{lines // sets},{LINE}"


def objects(kernels: Iterable[Kernel], target: TargetDescription) -> list[bytes]:
    """Object code; for AVX2 with a product and a sum for each FMA, which valgrind computes lane by lane."""
    if target.isa == "avx2":
        target = replace(target, features=f"{target.features},-fma")
    texts = [emit(kernel, target).replace("@llvm.fma.", "@llvm.fmuladd.") for kernel in kernels]
    return compile_many(texts, target)


def build(compiled: Compiled, target: TargetDescription, inputs: Sequence[Array], folder: Path) -> list[int]:
    """Writes the program `run` and `image`, the memory it works on; returns where in it the outputs start."""
    program = compiled.program
    arrays: dict[Slot, Array] = {("constant", name): array for name, array in program.constants.items()}
    arrays |= {("input", at): array for at, array in enumerate(inputs)}
    arrays |= {
        ("output", at): np.zeros(kind.shape, kind.dtype.numpy) for at, (_, kind) in enumerate(program.outputs)
    }
    starts: dict[Slot, int] = {}
    size = program.arena_bytes
    with (folder / "image").open("wb") as image:
        for slot, array in arrays.items():
            unit = alignment_of(array.nbytes)
            starts[slot] = size = -(-size // unit) * unit
            image.seek(size)
            image.write(np.ascontiguousarray(array).tobytes())
            size += array.nbytes
        image.truncate(size)
    slots = [program.slots[name] for launch in program.launches for name in launch.args]
    offsets = [
        int(slot[1]) if slot[0] == "arena" else starts[slot[:2]] + (slot[2] if len(slot) == 3 else 0)
        for slot in slots
    ]
    first = itertools.accumulate((len(launch.args) for launch in program.launches[:-1]), initial=0)
    symbols = [launch.symbol for launch in program.launches]
    source = DRIVER % {
        "declarations": "".join(f"extern kernel {symbol};\n" for symbol in dict.fromkeys(symbols)),
        "kernels": ", ".join(symbols), "first": ", ".join(map(str, first)),
        "offsets": ", ".join(map(str, offsets)), "size": size, "loops": SHARED_LOOPS,
    }  # fmt: skip
    (folder / "run.c").write_text(source)
    for name, data in zip(compiled.kernels, objects(compiled.kernels.values(), target), strict=True):
        (folder / f"{name}.o").write_bytes(data)
    names = [f"{name}.o" for name in compiled.kernels]
    subprocess.run(["cc", "-O1", "-o", "run", "run.c", *names, "-lm"], cwd=folder, check=True)
    return [starts["output", at] for at in range(len(program.outputs))]


def simulate(folder: Path, l1: str, last: str) -> list[tuple[int, int]]:
    """Bytes that missed the first and the last level, of each launch of the second inference."""
    command = ["valgrind", "--tool=callgrind", "--cache-sim=yes", f"--D1={l1}", f"--LL={last}",
               "--combine-dumps=yes", "--callgrind-out-file=counts", "./run", "image"]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError("the simulation failed", why=done.stderr[-2000:])
    found = parse_counts((folder / "counts").read_text())
    (folder / "counts").unlink()
    return found


def parse_counts(text: str) -> list[tuple[int, int]]:
    """Bytes that missed the first and the last level in each part of a callgrind file that a launch ended."""
    events = re.search(r"^events: (.*)$", text, re.M)
    if events is None:
        raise ValueError("not a callgrind file")
    names, found = events[1].split(), []
    for part in re.split(r"^part: ", text, flags=re.M)[1:]:
        if "Client Request: launch" in part:
            totals = re.search(r"^(?:totals|summary): (.*)$", part, re.M)
            assert totals is not None
            count = Counter(dict(zip(names, map(int, totals[1].split()), strict=False)))
            found.append((LINE * (count["D1mr"] + count["D1mw"]), LINE * (count["DLmr"] + count["DLmw"])))
    return found


def compare(setup: Setup, compiled: Compiled, inputs: Sequence[Array]) -> list[Row]:
    """Both readings of every launch of one inference."""
    machine, regions = setup.machine, {region.id: region for region in compiled.plan.regions}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(compiled, setup.target, inputs, folder)
        l1 = geometry(machine.l1_bytes, 8)
        runs = [simulate(folder, l1, geometry(size, 16)) for size in (machine.l2_bytes, machine.l3_bytes)]
    rows = []
    for launch, (beyond_l1, beyond_l2), (_, beyond_l3) in zip(compiled.program.launches, *runs, strict=True):
        region = regions[launch.region]
        at = region.estimate.traffic.bytes_at
        plan = (sum(at.values()), at["l3"] + at["memory"], at["memory"])
        rows.append(Row(region.name, region.form, plan, (beyond_l1, beyond_l2, beyond_l3)))
    return rows


def total(rows: Sequence[Row]) -> Row:
    """The sum over `rows`."""
    plan, seen = (np.array(column).sum(axis=0) for column in ([r.plan for r in rows], [r.seen for r in rows]))
    return Row("all", "", tuple(plan.tolist()), tuple(seen.tolist()))


def cells(row: Row) -> list[str]:
    """A row of the table: for each cache, predicted and simulated bytes, and simulated / predicted."""
    pairs = zip(row.plan, row.seen, strict=True)
    figures = [(bytes_text(p), bytes_text(s), f"{s / p:.2f}" if p else "–") for p, s in pairs]
    return [row.region, row.form, *(text for triple in figures for text in triple)]


def main() -> None:
    """Compiles, simulates, prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="an ONNX file, or zoo:NAME")
    parser.add_argument("--shape", action="append", metavar="NAME=1x3x224x224")
    parser.add_argument("--l3-mib", type=int, help="plan and simulate with this share of the last level")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if why := missing_tools():
        sys.exit(why)
    if describe_host().isa == "avx512":
        os.environ["ONEPASS_ISA"] = "avx2"
    opened = open_model(lambda step: None, options.model, options.shape, 1, "auto", False)
    machine = opened.setup.machine
    machine = replace(machine, l3_bytes=options.l3_mib << 20 if options.l3_mib else machine.l3_bytes)
    graph = import_onnx(opened.loaded, opened.shapes)
    found = {}
    for fuse, label in (("none", "unfused"), ("auto", "fused")):
        setup = replace(opened.setup, machine=machine).with_fuse(fuse)
        found[label] = compare(setup, setup.compile(graph), list(inputs_of(opened.loaded, graph).values()))
    if options.json:
        sizes = {"l1": machine.l1_bytes, "l2": machine.l2_bytes, "l3": machine.l3_bytes}
        lists = {label: list(map(asdict, rows)) for label, rows in found.items()}
        print(json.dumps({"model": opened.label, "caches": sizes, **lists}))
        return
    heads = [f"{what} {cache}" for cache in ("L1", "L2", "L3") for what in ("plan >", "seen >", "ratio >")]
    for label, rows in found.items():
        lines = map(cells, [*rows, total(rows)])
        Terminal(width=180).print(table(["region", "form"], heads, lines, f"{opened.label}, {label}"))


if __name__ == "__main__":
    main()
