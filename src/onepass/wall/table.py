"""The table of hardware: typed records, ridges, and growth over two years.

In: `hardware.csv` beside this module (figures of one device; those without a source are left blank).
Out: records. Families are never mixed: CPUs, GPU vector units and GPU matrix units grow differently.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import numpy as np

from onepass.core.errors import InternalError
from onepass.cost.machine import Machine

Family = Literal["cpu", "gpu vector", "gpu matrix"]
FAMILIES: tuple[Family, ...] = ("cpu", "gpu vector", "gpu matrix")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in base units (flop/s or byte/s) and where it was read."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """One chip, by year of release. `kind` is cpu, gpu, coprocessor, soc or tpu.

    `vector` is the float32 peak of the vector units, `matrix` the dense peak of the matrix units in
    `matrix_dtype`. A device with `shipped` False had only announced figures.
    """

    year: int
    vendor: str
    name: str
    kind: str
    shipped: bool
    vector: Figure | None
    matrix: Figure | None
    matrix_dtype: str
    bandwidth: Figure | None

    def peak(self, family: Family) -> Figure | None:
        """The peak that counts for `family`; None for another kind of device or a blank."""
        if self.kind != family.split()[0]:
            return None
        return self.matrix if family == "gpu matrix" else self.vector

    def ridge_flops_per_byte(self, family: Family) -> float | None:
        """Operations for one byte of memory traffic at which both limits meet; None when either is blank."""
        peak = self.peak(family)
        return peak.value / self.bandwidth.value if peak and self.bandwidth else None


@dataclass(frozen=True, slots=True)
class Growth:
    """Factors over two years, fitted to the best shipped device of each year that has both figures.

    `ridge_fit`: the fitted peak over the fitted bandwidth is `exp(intercept + slope * year)`.
    """

    family: Family
    first_year: int
    last_year: int
    years: int
    peak_factor: float
    bandwidth_factor: float
    ridge_fit: tuple[float, float]

    @property
    def ridge_factor(self) -> float:
        """Growth, in two years, of the operations that a byte must pay for."""
        return self.peak_factor / self.bandwidth_factor

    def ridge_flops_per_byte(self, year: float) -> float:
        """Fitted peak over fitted bandwidth."""
        return math.exp(self.ridge_fit[0] * year + self.ridge_fit[1])


def load_devices() -> tuple[Device, ...]:
    """All devices of the shipped table, by year."""
    text = resources.files("onepass.wall").joinpath("hardware.csv").read_text(encoding="utf-8")
    return tuple(_device(row) for row in csv.DictReader(text.splitlines()))


def growth_per_two_years(devices: tuple[Device, ...], family: Family) -> Growth:
    """Least squares on the logarithm of each year's best, for the peak and for the bandwidth.

    Raises ValueError when fewer than two years have a device with both figures.
    """
    best: dict[int, tuple[float, float]] = {}
    for device in devices:
        peak = device.peak(family)
        if device.shipped and peak and device.bandwidth:
            before = best.get(device.year, (0.0, 0.0))
            best[device.year] = (max(before[0], peak.value), max(before[1], device.bandwidth.value))
    if len(best) < 2:
        raise ValueError(f"no two years with figures for {family}")
    years = np.array(sorted(best), np.float64)
    logs = np.log(np.array([best[int(year)] for year in years]))
    # Fitting around the mean year keeps the problem well conditioned.
    centre = years.mean()
    slopes, levels = np.polyfit(years - centre, logs, 1)
    slope = float(slopes[0] - slopes[1])
    peak_factor, bandwidth_factor = map(float, np.exp(2 * slopes))
    return Growth(
        family, int(years[0]), int(years[-1]), len(best), peak_factor, bandwidth_factor,
        (slope, float(levels[0] - levels[1] - slope * centre)),
    )


def place_machine(machine: Machine) -> Device:
    """`machine` as a device, its figures measured with all its cores, in the year of the measurement."""
    peak = machine.peak_flops_per_s("float32", machine.cores)
    bandwidth = machine.bandwidth_bytes_per_s("memory", machine.cores, streamed=True)
    date = max(roof.date for roof in machine.roofs)
    return Device(int(date[:4]), "", machine.name, "cpu", True, Figure(peak, f"measured {date}"), None, "",
                  Figure(bandwidth, f"measured {date}"))


def _device(row: dict[str, str]) -> Device:
    return Device(
        int(row["year"]), row["vendor"], row["name"], row["kind"], row["status"] == "shipped",
        _figure(row, "fp32", "tflops", 1e12), _figure(row, "matrix", "tflops", 1e12), row["matrix_dtype"],
        _figure(row, "bandwidth", "gbs", 1e9),
    )


def _figure(row: dict[str, str], name: str, unit: str, scale: float) -> Figure | None:
    value, source = row[f"{name}_{unit}"], row[f"{name}_source"]
    if bool(value) != bool(source):
        raise InternalError("load_devices", f"{row['name']}: {name} needs both a value and a source")
    return Figure(float(value) * scale, source) if value else None
