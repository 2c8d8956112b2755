"""A compiled model as one file: the model with its weights, the settings, and the object code.

In: the parts of a model. Out: a zip file without compression (so nothing in it can unpack to more than
its size) and without pickles; and back. Object code is stored by its cache key, which names processor,
generator and versions: code for another machine is never found, the contained model is compiled instead.
Load only files that you would run as a program: they hold machine code.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO

from onepass.compare.setup import Setup, set_up
from onepass.core.errors import ModelError
from onepass.core.files import write_whole
from onepass.core.settings import Settings
from onepass.core.tensor import Shape
from onepass.frontends.onnx_embed import self_contained
from onepass.frontends.onnx_model import OnnxModel, load_onnx
from onepass.runtime.machine_cache import machine_from_json, machine_to_json
from onepass.runtime.workers import worker_count
from onepass.targets.llvm.description import TargetDescription, describe_host

FORMAT = 1
_MANIFEST, _MODEL, _OBJECT = "manifest.json", "model.onnx", re.compile(r"objects/([0-9a-f]{64})\.o")


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a file holds: `shapes` of each specialization, `objects` by cache key.

    `note` says why the code in it cannot be used here, '' where it can.
    """

    loaded: OnnxModel
    setup: Setup
    shapes: tuple[dict[str, Shape], ...]
    objects: Mapping[str, bytes]
    note: str = ""


def write_bundle(bundle: Bundle, path: Path) -> None:
    """Writes the file, whole or not at all; raises UserError where it cannot."""
    setup = bundle.setup
    settings = {**asdict(setup.settings), "rewrites": sorted(setup.settings.rewrites)}
    manifest = {
        "format": FORMAT,
        "onepass": version("onepass"),
        "settings": settings,
        "workers": setup.workers,
        "target": asdict(setup.target),
        "machine": json.loads(machine_to_json(setup.machine)),
        "specializations": bundle.shapes,
    }
    model = self_contained(bundle.loaded)

    def fill(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            archive.writestr(_MODEL, model)
            for key, data in bundle.objects.items():
                archive.writestr(f"objects/{key}.o", data)

    write_whole(path, fill)


def read_bundle(path: Path, threads: int | None) -> Bundle:
    """Reads what `write_bundle` wrote; `threads` overrides the settings.

    Raises ModelError for a damaged or foreign file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive)
            manifest = json.loads(members.pop(_MANIFEST))
            model = members.pop(_MODEL)
    except OSError as error:
        raise ModelError("the saved model cannot be read", where=str(path), why=str(error)) from error
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(path, "it is of another format")
    try:
        settings = _settings(manifest["settings"], threads)
        setup, note = _setup(manifest, settings)
        shapes = tuple(_shapes(each) for each in manifest["specializations"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"its manifest is wrong at {error}") from error
    return Bundle(load_onnx(model), setup, shapes, dict(_objects(members)), note)


def _damaged(path: Path, why: str) -> ModelError:
    return ModelError(
        "the file is not a model that onepass saved, or it is damaged", where=str(path), why=why,
        remedy="save it again, or compile the ONNX model",
    )  # fmt: skip


def _members(archive: zipfile.ZipFile) -> dict[str, bytes]:
    for item in archive.infolist():
        known = item.filename in (_MANIFEST, _MODEL) or _OBJECT.fullmatch(item.filename)
        if not known or item.compress_type != zipfile.ZIP_STORED or item.file_size != item.compress_size:
            raise ValueError(f"it holds '{item.filename[:80]}', which onepass does not write")
    return {item.filename: archive.read(item) for item in archive.infolist()}


def _objects(members: Mapping[str, bytes]) -> Iterable[tuple[str, bytes]]:
    for name, data in members.items():
        found = _OBJECT.fullmatch(name)
        if found:
            yield found[1], data


def _settings(row: Mapping[str, object], threads: int | None) -> Settings:
    """The stored settings, each checked for its type."""
    stored = row["threads"]
    rewrites, cache, fuse = row["rewrites"], row["cache"], row["fuse"]
    if not (isinstance(rewrites, list) and isinstance(cache, bool) and isinstance(fuse, str)):
        raise TypeError("settings")
    if not (stored is None or isinstance(stored, int)):
        raise TypeError("threads")
    known = Settings().rewrites
    if not known.issuperset(rewrites):
        raise ValueError("rewrites")
    shapes = row["shapes"]
    if not isinstance(shapes, dict):
        raise TypeError("shapes")
    return Settings(stored if threads is None else threads, fuse, _shapes(shapes), frozenset(rewrites), cache)


def _shapes(row: Mapping[str, list[int]]) -> dict[str, Shape]:
    shapes = {str(name): tuple(shape) for name, shape in row.items()}
    if not all(isinstance(size, int) for shape in shapes.values() for size in shape):
        raise TypeError("shapes")
    return shapes


def _setup(manifest: Mapping[str, object], settings: Settings) -> tuple[Setup, str]:
    """The setup that was saved where processor and workers are the same, so that the plan is; else a new
    one, and in words why."""
    target = describe_host()
    stored = manifest["target"]
    if not isinstance(stored, dict):
        raise TypeError("target")
    if TargetDescription(**stored) != target:
        saved = f"{stored['cpu']} ({stored['isa']})"
        note = f"saved for {saved}, this is {target.cpu} ({target.isa}): compiled again"
        return set_up(settings), note
    workers = worker_count(settings.threads)
    if workers != manifest["workers"]:
        note = f"saved for {manifest['workers']} threads, this is for {workers}: planned again"
        return set_up(settings), note
    return Setup(settings, machine_from_json(json.dumps(manifest["machine"])), target, workers), ""

