"""The options of one compilation, shared by the command line and the Python API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from onepass.core.errors import OptionError
from onepass.core.tensor import Shape

REWRITES = frozenset({"fold_batch_norm", "winograd"})
"""The rewrites that may change rounding."""


def rewrites_without(names: Sequence[str]) -> frozenset[str]:
    """All rewrites but these; raises OptionError for a name that is none."""
    for name in names:
        if name not in REWRITES:
            raise OptionError(
                f"'{name}' is not a rewrite", remedy=f"the rewrites are {', '.join(sorted(REWRITES))}"
            )
    return REWRITES - set(names)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compile. `threads` None means: ask affinity, cgroup quota and ONEPASS_NUM_THREADS.

    `fuse` is `none`, `auto` (what is predicted to pay), `all` (what is legal), `only=NAME[,NAME]` (as `auto`,
    but only regions that hold one of these nodes) or `limit=N` (the first N merges of `auto`, to find a bad
    one). `rewrites` names those of `REWRITES` that are on; `--exact` empties it.
    """

    threads: int | None = None
    fuse: str = "auto"
    shapes: dict[str, Shape] = field(default_factory=dict)
    rewrites: frozenset[str] = REWRITES
    cache: bool = True
