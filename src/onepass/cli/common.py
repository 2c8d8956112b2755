"""What all commands share: options, opening a model, and how results, progress and errors are shown."""

from __future__ import annotations

import errno
import functools
import json
import math
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, ParamSpec

import typer
from rich.markup import escape

from onepass.compare.setup import GpuSetup, Setup, gpu_setup, set_up
from onepass.core.errors import InternalError, ModelError, OptionError, UserError
from onepass.core.settings import DEFAULT_REWRITES, FLUSH, REWRITES, Settings, choose_rewrites
from onepass.core.tensor import Shape
from onepass.cost.gpu import GPUS
from onepass.frontends.onnx_model import OnnxModel, load_onnx
from onepass.report.outcome import Json
from onepass.report.terminal import Terminal
from onepass.zoo import catalog

P = ParamSpec("P")
ROOFS = "reading this machine's roofs (measured once)"
WIDE = 200
"""Columns of a table that goes to a file or a pipe."""

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="An ONNX file, or zoo:NAME for a built-in model.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(metavar="N", show_default="all this process may use", help="Threads that compute."),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=1x3x224x224", show_default=False,
                 help="Shape of an input whose sizes the model leaves open. May be given several times."),
]  # fmt: skip
FuseOption = Annotated[
    str,
    typer.Option(metavar="MODE",
                 help="What to fuse: none; auto (where the predicted time falls); all (wherever that is "
                 "legal); only=NODE,... (around these nodes); limit=N (the first N merges, to bisect)."),
]  # fmt: skip
ExactOption = Annotated[
    bool, typer.Option("--exact", help="Switch off every rewrite that may change the rounding of results.")
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="REWRITE", show_default=False,
                 help="Switch off one such rewrite: " + " or ".join(sorted(DEFAULT_REWRITES)) + ". "
                 "May be given several times."),
]  # fmt: skip
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="REWRITE", show_default=False,
                 help=f"Switch on a rewrite that is off by default: {FLUSH} ({REWRITES[FLUSH]})."),
]  # fmt: skip
TuneOption = Annotated[
    bool,
    typer.Option("--tune",
                 help="Where convolutions may take several forms, or run as a chain, time the ways and "
                 "keep the fastest."),
]  # fmt: skip
TargetOption = Annotated[
    str | None,
    typer.Option(metavar="GPU", show_default="this CPU",
                 help=f"Compile for a GPU, which need not be there: {', '.join(GPUS)}; or cuda, the one that "
                 "is. Needs `pip install 'onepass[cuda]'`. Without winograd, --threads, --tune and --allow."),
]  # fmt: skip
DtypeOption = Annotated[
    str | None,
    typer.Option(metavar="TYPE", show_default="as the model is",
                 help="With --target: make float32 values float16 or bfloat16, which tensor cores multiply; "
                 "sums stay float32."),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Opened:
    """A model named on the command line: as typed, a short name for files, its input shapes, and how it is
    to be compiled."""

    label: str
    name: str
    loaded: OnnxModel
    shapes: Mapping[str, Shape]
    setup: Setup | GpuSetup


def open_model(
    step: Callable[[str], None], model: str, shapes: Sequence[str] | None, threads: int | None, fuse: str,
    exact: bool, without: Sequence[str] | None, allow: Sequence[str] | None, tune: bool,
    target: str | None = None, dtype: str | None = None,
) -> Opened:  # fmt: skip
    """The model at path `model`, or of the zoo, with the options; raises UserError.

    The shapes are those given, then those that the model carries; `step` is told what is done.
    """
    settings = Settings(threads, fuse, {}, choose_rewrites(exact, without or (), allow or ()), tune=tune)
    gpu = gpu_setup(settings, target, dtype, step)
    step("reading the model")
    given = dict(map(parse_shape, shapes or ()))
    name = model.removeprefix("zoo:") if model.startswith("zoo:") else Path(model).stem
    loaded = load_onnx(catalog.build(name) if model.startswith("zoo:") else Path(model))
    try:
        known = {**catalog.default_shapes(loaded.proto), **given}
    except ValueError:
        raise ModelError("the shapes in the model's metadata are damaged", where=model) from None
    settings = replace(settings, shapes=dict(known))
    if gpu is not None:
        setup: Setup | GpuSetup = replace(gpu, settings=settings)
    else:
        step(ROOFS)
        setup = set_up(settings, step)
    short = re.sub(r"[^\w.-]", "_", f"{name}-{target}" if target else name)
    return Opened(model, short or "model", loaded, known, setup)


def parse_shape(text: str) -> tuple[str, Shape]:
    """`NAME=1x3x224x224` as name and sizes; the sizes of a scalar are empty. Raises OptionError."""
    name, equals, sizes = text.rpartition("=")
    if not name or not equals or not re.fullmatch(r"(\d{1,18}(x\d{1,18})*)?", sizes):
        negative = "-" in sizes
        raise OptionError(
            f"'{text}' is not a shape", where="--shape",
            why="a size cannot be negative" if negative else "a shape is a name, '=' and sizes joined by 'x'",
            remedy="write it like --shape input=1x3x224x224",
        )  # fmt: skip
    return name, tuple(map(int, sizes.split("x"))) if sizes else ()


def screen() -> Terminal:
    """Where results go; colour only on a terminal."""
    return Terminal(width=None if sys.stdout.isatty() else WIDE)


def show_json(data: Json) -> None:
    """One JSON object on standard output; what JSON cannot express (infinity, NaN) becomes null."""
    print(json.dumps(_finite(data)))


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {str(key): _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows what is done next: a moving line on a terminal, else a line each."""
    errors = Terminal(stderr=True)
    if not errors.is_terminal:
        yield lambda step: errors.say(f"onepass: {step}")
        return
    with errors.status("starting") as status:
        yield lambda step: status.update(escape(step))


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """`command` with its failures shown as the package's description says."""

    @functools.wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> None:
        try:
            command(*args, **options)
            sys.stdout.flush()
        except UserError as error:
            parts = {"what": error.what, "where": error.where, "why": error.why, "remedy": error.remedy}
            _fail(2, parts, str(error), options.get("as_json") is True)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except (BrokenPipeError, typer.Exit):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                parts = {"what": "standard output cannot be written", "why": str(error.strerror)}
                _fail(2, parts, "\n".join(parts.values()), False)
            step = error.step if isinstance(error, InternalError) else "unknown"
            parts = {"what": str(error), "step": step, "remedy": _what_to_send()}
            text = "".join(traceback.format_exception(error)) + _what_to_send()
            _fail(3, parts, text, options.get("as_json") is True)

    return run


def _what_to_send() -> str:
    command = shlex.join(["onepass", *sys.argv[1:]])
    return (
        f"This is a bug in onepass {version('onepass')}, not in your model. Please send this text, the model "
        f"(or its first failing part) and the command: {command}"
    )


def _fail(code: int, error: Mapping[str, str], text: str, as_json: bool) -> None:
    if as_json:
        show_json({"error": dict(error)})
    else:
        Terminal(stderr=True).print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)
