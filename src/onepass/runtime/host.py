"""What the operating system says of this machine: the processor's name and its cache sizes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of the data caches, `l1` and `l2` of one core, `l3` shared."""

    l1: int
    l2: int
    l3: int


# Where the system is silent: the smallest caches of the AArch64 and x86-64 server cores in use (Arm
# Neoverse N1 Technical Reference Manual, r4p1: 64 KiB and 512 KiB or 1 MiB; Intel Optimization Reference
# Manual, chapter 2: 32 KiB, 256 KiB or more, and 1.375 MiB or more of L3 a core).
_DEFAULT = Caches(32 * KIB, 512 * KIB, 8 * MIB)


def cpu_model() -> str:
    """The processor's name as its maker spells it, or the architecture where it has none."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name") and ":" in line]
    return names[0] if names else platform.processor() or platform.machine()


def available_cores() -> int:
    """Logical processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Physical memory; 4 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 4 << 30


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> Caches:
    """Cache sizes from Linux's sysfs or macOS' sysctl; a level that neither names gets a default."""
    found = _sysctl_caches() if sys.platform == "darwin" else _sysfs_caches(folder)
    l1, l2 = found.get(1) or _DEFAULT.l1, found.get(2) or _DEFAULT.l2
    return Caches(l1, l2, found.get(3) or max(l2, _DEFAULT.l3))


def _sysfs_caches(folder: Path) -> dict[int, int]:
    """Bytes by level. Source: Linux, Documentation/ABI/testing/sysfs-devices-system-cpu."""
    found: dict[int, int] = {}
    units = {"K": KIB, "M": MIB, "G": KIB * MIB}
    for index in sorted(folder.glob("index*")):
        try:
            if (index / "type").read_text().strip() in ("Data", "Unified"):
                text = (index / "size").read_text().strip()
                scale = units.get(text[-1:], 1)
                found[int((index / "level").read_text())] = int(text.rstrip("KMG")) * scale
        except (OSError, ValueError):
            continue
    return found


def _sysctl_caches() -> dict[int, int]:
    """Bytes by level: the performance cores' where macOS tells kinds of cores apart."""
    found = {}
    for level, name in ((1, "l1dcachesize"), (2, "l2cachesize"), (3, "l3cachesize")):
        found[level] = int(_sysctl(f"hw.perflevel0.{name}") or _sysctl(f"hw.{name}") or 0)
    return found


def _sysctl(name: str) -> str:
    """What macOS says of `name`, '' where it has nothing to say."""
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip()
