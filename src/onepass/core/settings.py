"""The options of one compilation, shared by the command line and the Python API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from onepass.core.errors import OptionError
from onepass.core.tensor import Shape

FLUSH = "flush_subnormals"
REWRITES = {
    "fold_batch_norm": "batch norm as one multiply-add, its two numbers a channel rounded once",
    FLUSH: "numbers below 2^-126 (float64: 2^-1022) are zero, as operands and as results; off unless allowed",
    "winograd": "3x3 convolutions by way of transformed tiles, with fewer multiplications",
    "online_softmax": "on a GPU, long rows of softmax between two products go block by block: in n blocks up "
    "to n rounded factors exp(maximum before - maximum after) enter a weight",
}
"""The rewrites that may change results, each with what it does."""
DEFAULT_REWRITES = frozenset(REWRITES) - {FLUSH}


def choose_rewrites(exact: bool, without: Sequence[str], allow: Sequence[str]) -> frozenset[str]:
    """The default rewrites, none with `exact`, but those in `without`, and those in `allow`.

    Raises OptionError for a name that is no rewrite, or in both.
    """
    for name in (*without, *allow):
        if name not in REWRITES:
            raise OptionError(f"'{name}' is not a rewrite", remedy=f"the rewrites are {', '.join(REWRITES)}")
        if name in without and name in allow:
            raise OptionError(f"the rewrite '{name}' is both allowed and switched off")
    return (frozenset() if exact else DEFAULT_REWRITES - set(without)) | set(allow)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compile. `threads` None means: ask affinity, cgroup quota and ONEPASS_NUM_THREADS.

    `fuse` is `none`, `auto` (what is predicted to pay), `all` (what is legal), `only=NAME[,NAME]` (as `auto`,
    but only regions that hold one of these nodes) or `limit=N` (the first N merges of `auto`, to find a bad
    one). `rewrites` names those of `REWRITES` that are on. `tune`: where several forms are legal, they are
    timed and the fastest is taken.
    """

    threads: int | None = None
    fuse: str = "auto"
    shapes: dict[str, Shape] = field(default_factory=dict)
    rewrites: frozenset[str] = DEFAULT_REWRITES
    cache: bool = True
    tune: bool = False
