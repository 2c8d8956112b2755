"""Finds repeated blocks in a plan, so that a picture can draw each once with its count.

In: the regions of a plan as comparable signatures. Out: a tree of `Leaf` (one region, or the same
region of every repetition) and `Fold` (a sequence repeated). A fold's identity does not depend on
how often it repeats, so stages of 3, 4 and 6 blocks fold again into one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One place in the picture; `items` are the indices of all the regions that it stands for."""

    signature: Hashable
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fold(Generic[T]):
    """`body` repeated; `counts` says how often, once for each repetition of the fold around it."""

    body: tuple[T | Fold[T], ...]
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """How often the body occurs in the whole model."""
        return sum(self.counts)


Part = Leaf | Fold[Leaf]


def fold(signatures: Sequence[Hashable]) -> tuple[Part, ...]:
    """Folds repeats, inner before outer, until none is left. O(n^2) for each fold found."""
    parts: list[Part] = [Leaf(signature, (i,)) for i, signature in enumerate(signatures)]
    while run := _best_run(list(map(_signature, parts))):
        start, period, count = run
        rounds = [parts[start + r * period : start + (r + 1) * period] for r in range(count)]
        body = tuple(_merge(column) for column in zip(*rounds, strict=True))
        parts[start : start + period * count] = [Fold(body, (count,))]
    return tuple(parts)


def _signature(part: Part) -> Hashable:
    """Equal for the same body repeated any number of times."""
    return part.signature if isinstance(part, Leaf) else ("fold", *map(_signature, part.body))


def _merge(column: Sequence[Part]) -> Part:
    first = column[0]
    if isinstance(first, Leaf):
        items = (part.items for part in column if isinstance(part, Leaf))
        return Leaf(first.signature, tuple(chain.from_iterable(items)))
    folds = [part for part in column if isinstance(part, Fold)]
    bodies = zip(*(part.body for part in folds), strict=True)
    return Fold(tuple(_merge(body) for body in bodies), tuple(c for part in folds for c in part.counts))


def _best_run(signatures: Sequence[Hashable]) -> tuple[int, int, int] | None:
    """(start, period, count) of the repeat to fold next: the shortest period, then the most places saved.

    Short periods first, so that blocks fold before stages: otherwise the end of one stage and the
    beginning of the next pair up with those of other stages. One region alone must repeat three times.
    """
    ids: dict[Hashable, int] = {}
    codes = [ids.setdefault(signature, len(ids)) for signature in signatures]
    for period in range(1, len(codes) // 2 + 1):
        best, best_count, matched = 0, 0, 0
        for i in range(len(codes) - period - 1, -1, -1):
            matched = matched + 1 if codes[i] == codes[i + period] else 0
            count = matched // period + 1
            if count >= max(2, best_count):
                best, best_count = i, count
        if best_count >= (3 if period == 1 else 2):
            return best, period, best_count
    return None
