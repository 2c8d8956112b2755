"""A compiled model as one file: the model with its weights, the settings, and the object code.

In: the parts of a model. Out: a zip file without compression (so nothing in it can unpack to more than
its size) and without pickles; and back. Object code is stored by its cache key, which names processor,
generator and versions: code for another machine is never found, the contained model is compiled instead.
Load only files that you would run as a program: they hold machine code.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from onepass.compare.setup import Setup, set_up
from onepass.core.errors import ModelError
from onepass.core.files import write_whole
from onepass.core.settings import REWRITES, Settings
from onepass.core.tensor import Shape
from onepass.frontends.onnx_embed import self_contained
from onepass.frontends.onnx_model import OnnxModel, load_onnx
from onepass.fuse.planner import FuseMode
from onepass.runtime.machine_cache import machine_from_json, machine_to_json
from onepass.runtime.workers import worker_count
from onepass.targets.llvm.description import describe_host

FORMAT = 1
_MANIFEST, _MODEL, _OBJECTS = "manifest.json", "model.onnx", "objects/"


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
    manifest = {
        "format": FORMAT,
        "onepass": version("onepass"),
        "settings": {**asdict(setup.settings), "rewrites": sorted(setup.settings.rewrites)},
        "workers": setup.workers,
        "target": asdict(setup.target),
        "machine": machine_to_json(setup.machine),
        "specializations": bundle.shapes,
    }
    members: dict[str, str | bytes] = {
        _MANIFEST: json.dumps(manifest, indent=1),
        _MODEL: self_contained(bundle.loaded),
        **{_OBJECTS + key: data for key, data in bundle.objects.items()},
    }

    def fill(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    write_whole(path, fill)


def read_bundle(path: Path, threads: int | None) -> Bundle:
    """Reads what `write_bundle` wrote; `threads` overrides the settings.

    Raises ModelError for a damaged or foreign file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                if item.compress_type != zipfile.ZIP_STORED or item.file_size != item.compress_size:
                    raise ValueError(f"'{item.filename[:80]}' is compressed, as onepass does not write it")
            members = {item.filename: archive.read(item) for item in archive.infolist()}
        manifest, model = json.loads(members[_MANIFEST]), members[_MODEL]
        if manifest["format"] != FORMAT:
            raise ValueError("it is of another format")
        setup, note = _setup(manifest, threads)
        shapes = tuple(map(_shapes, manifest["specializations"]))
    except OSError as error:
        raise ModelError("the saved model cannot be read", where=str(path), why=str(error)) from error
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(
            "the file is not a model that onepass saved, or it is damaged", where=str(path), why=str(error),
            remedy="save it again, or compile the ONNX model",
        ) from error  # fmt: skip
    objects = {name.removeprefix(_OBJECTS): data for name, data in members.items() if _OBJECTS in name}
    return Bundle(load_onnx(model), setup, shapes, objects, note)


def _shapes(row: Mapping[str, list[int]]) -> dict[str, Shape]:
    return {name: tuple(map(int, sizes)) for name, sizes in row.items()}


def _setup(manifest: Mapping[str, Any], threads: int | None) -> tuple[Setup, str]:
    """The setup that was saved where processor and workers are the same, so that the plan is; else a new
    one, and in words why."""
    row, stored, target = manifest["settings"], manifest["target"], describe_host()
    rewrites = frozenset(row["rewrites"]) & REWRITES.keys()
    threads = row["threads"] if threads is None else threads
    settings = Settings(threads, row["fuse"], _shapes(row["shapes"]), rewrites, row["cache"], row["tune"])
    workers = worker_count(threads)
    FuseMode.parse(settings.fuse)  # a forged one is refused here
    if stored != asdict(target):
        saved = f"{stored['cpu']} ({stored['isa']})"
        return set_up(settings), f"saved for {saved}, this is {target.cpu} ({target.isa}): compiled again"
    if workers != manifest["workers"]:
        saved = f"saved for {manifest['workers']} threads, this is for {workers}"
        return set_up(settings), f"{saved}: planned again"
    return Setup(settings, machine_from_json(manifest["machine"]), target, workers), ""
