"""Writing a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from onepass.core.errors import UserError


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Lets `write` fill a file beside `path` that then takes its name; makes missing folders.

    A link stays and the file that it names is replaced; a device or pipe is written to.
    Raises UserError where the file cannot be written; what was at `path` before is then still there.
    """
    try:
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                write(file)
            return
        part = path.with_name(f".{threading.get_ident()}-{os.getpid()}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:
                write(file)
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
    except OSError as error:
        raise UserError(
            "a file cannot be written", where=str(path), why=error.strerror or str(error),
            remedy="choose another place, or make room",
        ) from error  # fmt: skip


def write_text(path: Path, text: str) -> None:
    """`text` as UTF-8; see `write_whole`."""
    write_whole(path, lambda file: file.write(text.encode()))

