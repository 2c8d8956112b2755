"""Instructions of independent iterations in turns, so that their latencies overlap.

A processor finds independent work among some hundred instructions, which a polynomial or two fill.
Iterations written one after another then wait for their own latencies: layer norm, GELU, sigmoid and softmax
over rows of 256 take 1400 cycles a row that way, and 1167 with four iterations mixed (Sapphire Rapids).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from onepass.loops.ir import Alloc, For, Store
from onepass.loops.walk import loads, statements

DEEP_LINES = 16  # a shorter iteration, as in a register tile, stays whole: the next one is in sight
REGISTERS_EACH = 8  # a polynomial's argument, result, scale and sign, and its share of the constants
_NAME = re.compile(r"%v\d+")


def mixed_iterations(loop: For, registers: int, in_memory: Iterable[str]) -> int:
    """How many iterations of an unrolled `loop` the `registers` allow to be mixed; 1 where none may be.

    The body has no branch and no loop but vectors, and each buffer of `in_memory` that it stores to is
    stored by one statement and not read.
    """
    inner = tuple(statements(loop.body))
    plain = all(isinstance(s, Alloc | Store) or (isinstance(s, For) and s.mode == "vector") for s in inner)
    stores = [s for s in inner if isinstance(s, Store)]
    stored = Counter(s.buffer for s in stores)
    read = {load.buffer for s in stores for e in (s.value, *s.indices) for load in loads(e)}
    apart = all(stored[name] == 0 or (stored[name] == 1 and name not in read) for name in in_memory)
    return max(1, registers // REGISTERS_EACH) if plain and apart else 1


def in_turns(parts: Sequence[Sequence[str]]) -> list[str]:
    """The lines of all `parts`, one of each in turn where they are deep.

    A line waits for the names that it uses, and a store for the same store of the part before.
    """
    if not parts or len(parts[0]) < DEEP_LINES:
        return [line for part in parts for line in part]
    missing = {line.split(" = ")[0].strip() for part in parts for line in part if " = " in line}
    queues = [deque(part) for part in parts]
    stores = [0] * len(parts)
    out: list[str] = []
    while any(queues):
        for at, queue in enumerate(queues):
            if not queue or not missing.isdisjoint(_NAME.findall(queue[0].partition(" = ")[2] or queue[0])):
                continue
            if queue[0].startswith("  store"):
                if at and queues[at - 1] and stores[at] >= stores[at - 1]:
                    continue
                stores[at] += 1
            line = queue.popleft()
            missing.discard(line.split(" = ")[0].strip())
            out.append(line)
    return out
