"""Object code on disk, so that a model compiles once a machine.

In: the key of what was compiled. Out: its bytes, or None. An entry is a checksum and the object; it is
written under another name and then renamed, so that readers and concurrent writers see all of it or
nothing. A directory that cannot be used makes every look-up a miss, never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import llvmlite  # type: ignore[import-untyped]
import llvmlite.binding as llvm  # type: ignore[import-untyped]

from onepass.targets.llvm.description import TargetDescription

FORMAT = 1
LIMIT_BYTES = 512 << 20
_SUFFIX = ".obj"
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
    return (Path(base) if base else Path.home() / ".cache") / "onepass"


def cache_key(text: str, target: TargetDescription) -> str:
    """Names everything that the object code depends on."""
    version = f"{FORMAT} {llvmlite.__version__} {llvm.llvm_version_info}"
    parts = (version, target.triple, target.cpu, target.features, text)
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


class CodeCache:
    """A directory of objects; `directory` None: nothing is kept. `events` lists what happened."""

    def __init__(self, directory: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.directory = directory
        self.events: list[CacheEvent] = []
        self._limit = limit_bytes
        self._broken = ""

    def load(self, key: str, symbol: str) -> bytes | None:
        """The object stored under `key`, or None; notes which in `events`."""
        if self.directory is None:
            self._note(symbol, "miss", "the cache is off")
            return None
        path = self.directory / (key + _SUFFIX)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            self._note(symbol, "miss", "not compiled before with this code, processor and versions")
            return None
        except OSError as error:
            self._note(symbol, "miss", f"cannot read {path}: {error.strerror}")
            return None
        digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if not body or hashlib.sha256(body).digest() != digest:
            self._note(symbol, "corrupt", f"{path} does not match its checksum; compiled again")
            return None
        with contextlib.suppress(OSError):  # a read-only cache is used as it is
            os.utime(path)  # the least recently used go first
        self._note(symbol, "hit")
        return body

    def store(self, key: str, symbol: str, data: bytes) -> None:
        """Keeps `data` under `key`; a failure is noted once and then not tried again."""
        if self.directory is None or self._broken:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.directory, suffix=".tmp")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(data).digest() + data)
                os.replace(name, self.directory / (key + _SUFFIX))
            except OSError:
                os.unlink(name)
                raise
        except OSError as error:
            self._broken = f"cannot write to {self.directory}: {error.strerror}; compiled code is not kept"
            self._note(symbol, "unwritable", self._broken)

    def trim(self) -> None:
        """Deletes the entries used longest ago until the rest fits the limit; call it after storing."""
        if self.directory is None:
            return
        entries = []
        try:
            for item in os.scandir(self.directory):
                if item.name.endswith((_SUFFIX, ".tmp")):
                    status = item.stat()
                    entries.append((status.st_mtime, status.st_size, item.path))
        except OSError:
            return  # another process is trimming, or there is no directory
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit:
                return
            Path(path).unlink(missing_ok=True)
            total -= size

    def _note(self, symbol: str, outcome: Outcome, reason: str = "") -> None:
        self.events.append(CacheEvent(symbol, outcome, reason))
