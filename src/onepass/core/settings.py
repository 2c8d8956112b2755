"""The options of one compilation, shared by the command line and the Python API."""

from __future__ import annotations

from dataclasses import dataclass, field

from onepass.core.tensor import Shape


@dataclass(frozen=True, slots=True)
class Settings:
    """How to compile. `threads` None means: ask affinity, cgroup quota and ONEPASS_NUM_THREADS.

    `fuse` is `none`, `auto` (what is predicted to pay), `all` (what is legal), `only=NAME[,NAME]` (as `auto`,
    but only regions that hold one of these nodes) or `limit=N` (the first N merges of `auto`, to find a bad
    one). `rewrites` names the rewrites that may change
    rounding; `--exact` empties it. `tune`: where several forms are legal, they are timed and the
    fastest is taken.
    """

    threads: int | None = None
    fuse: str = "auto"
    shapes: dict[str, Shape] = field(default_factory=dict)
    rewrites: frozenset[str] = frozenset({"fold_batch_norm", "winograd"})
    cache: bool = True
    tune: bool = False
