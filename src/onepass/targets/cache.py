"""Compiled code on disk, so that a model compiles once a machine.

In: the symbol of a kernel and a target. Out: its object's bytes, or None. An entry is a checksum and
the bytes, written whole or not at all. A directory that cannot be used makes every look-up a miss,
never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import llvmlite  # type: ignore[import-untyped]
import llvmlite.binding as llvm  # type: ignore[import-untyped]

from onepass.core.errors import UserError
from onepass.core.files import write_whole
from onepass.targets.llvm.description import TargetDescription

FORMAT = 1
LIMIT_BYTES = 512 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size
Outcome = Literal["hit", "miss", "corrupt", "unwritable"]


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """What happened to one symbol, and why in words (empty for a hit)."""

    symbol: str
    outcome: Outcome
    reason: str = ""


def default_directory() -> Path:
    """`ONEPASS_CACHE_DIR`, else `onepass` in the user's cache directory."""
    chosen = os.environ.get("ONEPASS_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "onepass"
    except RuntimeError:  # a user without a home keeps nothing
        return Path(os.devnull) / "onepass"


@lru_cache(maxsize=1)
def _generator() -> str:
    """Digest of the code generator's own source and of LLVM's version."""
    digest = hashlib.sha256(f"{FORMAT} {llvmlite.__version__} {llvm.llvm_version_info}".encode())
    for path in sorted((Path(__file__).parent / "llvm").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def cache_key(symbol: str, target: TargetDescription) -> str:
    """Names everything that object code depends on, where `symbol` stands for the kernel's text."""
    parts = (_generator(), target.triple, target.cpu, target.features, target.isa, symbol)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class EntryCache:
    """A directory of entries by key; `directory` None: nothing is kept. `events` lists what happened."""

    def __init__(self, directory: Path | None, suffix: str, limit_bytes: int = LIMIT_BYTES) -> None:
        self.directory = directory
        self.events: list[CacheEvent] = []
        self._suffix = suffix
        self._limit = limit_bytes
        self._broken = ""
        self._trimmed = False

    def look_up(self, symbol: str, key: str) -> bytes | None:
        """The entry of `key`, or None; notes which in `events`, under `symbol`."""
        if self.directory is None:
            self._note(symbol, "miss", "the cache is off")
            return None
        path = self.directory / (key + self._suffix)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            self._note(symbol, "miss", "not compiled before with this code, processor and versions")
            return None
        except OSError as error:
            self._note(symbol, "miss", f"cannot read an entry of {self.directory}: {error.strerror}")
            return None
        digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if not body or hashlib.sha256(body).digest() != digest:
            reason = f"an entry of {self.directory} does not match its checksum; compiled again"
            self._note(symbol, "corrupt", reason)
            return None
        with contextlib.suppress(OSError):  # a read-only cache is used as it is
            os.utime(path)  # the least recently used go first
        self._note(symbol, "hit")
        return body

    def keep(self, symbol: str, key: str, data: bytes) -> None:
        """Writes the entry of `key`; a failure is noted once and then not tried again."""
        if self.directory is None or self._broken:
            return
        if not self._trimmed:
            self._trimmed = True
            self._trim(self.directory)
        entry = self.directory / (key + self._suffix)
        try:
            write_whole(entry, lambda file: file.write(hashlib.sha256(data).digest() + data))
        except UserError as error:
            self._broken = f"cannot write to {self.directory}: {error.why}; compiled code is not kept"
            self._note(symbol, "unwritable", self._broken)

    def _trim(self, directory: Path) -> None:
        """Deletes the entries used longest ago until the rest fits the limit."""
        with contextlib.suppress(OSError):  # there is no directory yet, or another process is deleting
            kept = [item for item in os.scandir(directory) if item.name.endswith((self._suffix, ".part"))]
            entries = sorted((item.stat().st_mtime, item.stat().st_size, item.path) for item in kept)
            total = sum(size for _, size, _ in entries)
            for _, size, path in entries:
                if total <= self._limit:
                    break
                os.unlink(path)
                total -= size

    def _note(self, symbol: str, outcome: Outcome, reason: str = "") -> None:
        self.events.append(CacheEvent(symbol, outcome, reason))


class CodeCache(EntryCache):
    """The objects of LLVM. A kernel is known by its symbol: whoever names kernels puts a digest of the
    kernel's text in the name."""

    def __init__(self, directory: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__(directory, ".obj", limit_bytes)

    @classmethod
    def default(cls) -> CodeCache:
        """The cache of this user."""
        return cls(default_directory())

    def get(self, symbol: str, target: TargetDescription) -> bytes | None:
        """The object of `symbol` for `target`, or None; notes which in `events`."""
        return self.look_up(symbol, cache_key(symbol, target))

    def put(self, symbol: str, target: TargetDescription, data: bytes) -> None:
        """Keeps the object of `symbol`; a failure is noted once and then not tried again."""
        self.keep(symbol, cache_key(symbol, target), data)
