"""The code cache: hits, misses, corrupt entries, directories that cannot be used, writers at once."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.targets.cache import CodeCache, cache_key, default_directory
from onepass.targets.llvm.description import describe

KEY = "k0123"
TARGET = describe("x86-64-v3")


def outcomes(cache: CodeCache) -> list[str]:
    return [event.outcome for event in cache.events]


def test_round_trip(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "new")
    assert cache.get(KEY, TARGET) is None
    cache.put(KEY, TARGET, b"object")
    assert cache.get(KEY, TARGET) == b"object"
    assert outcomes(cache) == ["miss", "hit"]
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".obj"]


@pytest.mark.parametrize("damage", [b"", b"x", b"y" * 100])
def test_corrupt_entry_is_a_miss_that_is_noted(tmp_path: Path, damage: bytes) -> None:
    cache = CodeCache(tmp_path)
    cache.put(KEY, TARGET, b"object")
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage)
    assert cache.get(KEY, TARGET) is None
    cache.put(KEY, TARGET, b"object")
    assert cache.get(KEY, TARGET) == b"object"
    assert outcomes(cache) == ["corrupt", "hit"]


def test_one_flipped_bit_is_found(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    cache.put(KEY, TARGET, b"object")
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert cache.get(KEY, TARGET) is None


def test_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = CodeCache(tmp_path / "file")
    for _ in range(2):
        assert cache.get(KEY, TARGET) is None
        cache.put(KEY, TARGET, b"object")
    assert outcomes(cache) == ["miss", "unwritable", "miss"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_read_only_directory(tmp_path: Path) -> None:
    CodeCache(tmp_path).put(KEY, TARGET, b"object")
    tmp_path.chmod(0o500)
    cache = CodeCache(tmp_path)
    assert cache.get(KEY, TARGET) == b"object"
    cache.put("other", TARGET, b"object")
    tmp_path.chmod(0o700)
    assert outcomes(cache) == ["hit", "unwritable"]


def test_full_disk_is_noted_once_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    cache = CodeCache(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    for _ in range(2):
        cache.put(KEY, TARGET, b"object")
    assert outcomes(cache) == ["unwritable"] and not list(tmp_path.iterdir())
    assert "No space left" in cache.events[0].reason


def test_off() -> None:
    cache = CodeCache(None)
    cache.put(KEY, TARGET, b"object")
    assert cache.get(KEY, TARGET) is None


def test_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    for i in range(3):
        cache.put(str(i), TARGET, bytes(50))
        os.utime(tmp_path / f"{cache_key(str(i), TARGET)}.obj", (i, i))
    assert cache.get("0", TARGET) is not None
    later = CodeCache(tmp_path, limit_bytes=170)
    later.put("3", TARGET, bytes(50))
    assert [later.get(str(i), TARGET) is not None for i in range(4)] == [True, False, True, True]


def test_writers_at_once(tmp_path: Path) -> None:
    caches = [CodeCache(tmp_path) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda c=c: [c.put(KEY, TARGET, bytes(100_000)) for _ in range(20)])
        for c in caches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caches[0].get(KEY, TARGET) == bytes(100_000)
    assert len(list(tmp_path.iterdir())) == 1


def test_key_depends_on_code_and_processor() -> None:
    target = describe("x86-64-v3")
    keys = {
        cache_key("a", target),
        cache_key("b", target),
        cache_key("a", describe("x86-64-v4")),
        cache_key("a", replace(target, features="+avx512f")),
    }
    assert len(keys) == 4


def test_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEPASS_CACHE_DIR", "/x/y")
    assert default_directory() == Path("/x/y")
    monkeypatch.delenv("ONEPASS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert default_directory() == Path("/c/onepass")


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ONEPASS_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    cache = CodeCache.default()
    assert cache.get("f", TARGET) is None
    cache.put("f", TARGET, b"code")
    assert outcomes(cache) == ["miss", "unwritable"]
