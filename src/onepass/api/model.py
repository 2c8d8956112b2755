"""`onepass.compile` and the `Model` that it returns.

In: an ONNX model and the options of the command line. Out: a callable over numpy arrays, or on a GPU over
tensors of PyTorch too. Code is made for known sizes: at once where all are known, else for each set of
shapes at its first call.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from onepass.api.bundle import Bundle, read_bundle, write_bundle
from onepass.api.results import Results
from onepass.compare.explanation import Explanation, GpuExplanation, explain
from onepass.compare.fusion import run_fusion
from onepass.compare.setup import GpuSetup, Setup, gpu_setup, set_up
from onepass.core.dtypes import F32
from onepass.core.errors import OptionError, ShapeError, UserError
from onepass.core.files import write_text
from onepass.core.settings import Settings, choose_rewrites
from onepass.core.tensor import Shape
from onepass.frontends.onnx_import import import_onnx, refuse_unsupported
from onepass.frontends.onnx_model import InputDescription, ModelSource, OnnxModel, describe_inputs, load_onnx
from onepass.frontends.onnx_shapes import bind_shapes
from onepass.fuse.plan import Plan
from onepass.gpu_pipeline import GpuCompiled
from onepass.ops.opdef import Array
from onepass.pipeline import Compiled
from onepass.report.gpu import kernel_rows

Shapes = tuple[Shape, ...]


def compile(
    model: ModelSource,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int | None = None,
    fuse: str = "auto",
    exact: bool = False,
    without: Sequence[str] = (),
    allow: Sequence[str] = (),
    cache: bool = True,
    tune: bool = False,
    target: str | None = None,
    dtype: str | None = None,
) -> Model:
    """Compiles an ONNX model (path, bytes or ModelProto) for this machine's CPU, or for a GPU.

    `shapes` fixes inputs to sizes; inputs that stay open take the sizes of the arrays of each call.
    `fuse` is none, auto, all, only=NODE[,NODE] or limit=N. `exact` switches off every rewrite that may
    change rounding, `without` those it names (such as `winograd`); `allow` switches on those it
    names, such as `flush_subnormals`: subnormal numbers are zero. `cache=False` leaves the code cache on
    disk alone. `tune` times the forms that a convolution may take, and chains against their members apart,
    and keeps the fastest, which `Model.plan.tuned` tells. `target` is `cuda`, the GPU that is present, or
    one that need not be, such as `cuda:sm_90`: then the model can be explained, but called only where that
    GPU is. With a target, `dtype` float16 or bfloat16 lowers float32 values, inputs and outputs among them.
    Raises ModelError, ShapeError or OptionError, in the model's own names.
    """
    try:
        given = {name: tuple(map(operator.index, shape)) for name, shape in dict(shapes or {}).items()}
    except (TypeError, ValueError):
        raise OptionError(
            f"{shapes!r} are not shapes", remedy="write them like shapes={'input': (1, 3, 224, 224)}"
        ) from None
    settings = Settings(threads, fuse, given, choose_rewrites(exact, without, allow), cache, tune)
    on_gpu = gpu_setup(settings, target, dtype)
    return Model(load_onnx(model), on_gpu or set_up(settings))


def load(path: str | Path, *, threads: int | None = None) -> Model:
    """A model that `Model.save` wrote, ready to run in every shape that it was compiled for.

    On another processor, or for another number of threads, the contained model is compiled again, which
    `specializations` tells. Raises ModelError for a file that is damaged or not from onepass. The file
    holds machine code: load only what you would run.
    """
    bundle = read_bundle(Path(path), threads)
    model = Model(bundle.loaded, bundle.setup, bundle.objects, bundle.note)
    for shapes in bundle.shapes:
        model.prepare(shapes)
    return model


@dataclass(frozen=True, slots=True)
class Specialization:
    """One set of input shapes that code was made for: why, in how many seconds, and for how many kernels
    the object code was there already (`hits`) or had to be compiled (`misses`). `notes` are the cache's
    own explanations."""

    shapes: Mapping[str, Shape]
    reason: str
    compile_s: float
    hits: int
    misses: int
    notes: tuple[str, ...]


class Model:
    """A compiled model. Call it with arrays; safe to call from several threads.

    `inputs` are the declared inputs, `outputs` the names of the outputs, both in the model's order.
    """

    def __init__(
        self,
        loaded: OnnxModel,
        setup: Setup | GpuSetup,
        known: Mapping[str, bytes] | None = None,
        note: str = "",
    ) -> None:
        """`known` holds object code by cache key; `note` is added to the reason of what is compiled."""
        self.inputs: tuple[InputDescription, ...] = describe_inputs(loaded)
        if isinstance(setup, GpuSetup) and setup.dtype is not None:
            lowered = setup.dtype
            self.inputs = tuple(
                replace(item, dtype=lowered) if item.dtype == F32 else item for item in self.inputs
            )
        self.outputs: tuple[str, ...] = tuple(value.name for value in loaded.proto.graph.output)
        self.specializations: list[Specialization] = []
        self._loaded, self._setup = loaded, setup
        self._name = str(loaded.proto.graph.name) or "model"
        self._known, self._note = dict(known or {}), note
        self._compiled: dict[Shapes, Compiled | GpuCompiled] = {}
        self._compiling = threading.Lock()
        given = setup.settings.shapes
        refuse_unsupported(loaded)
        if _is_bound(self.inputs, given) or given.keys() - {item.name for item in self.inputs}:
            types = bind_shapes(self.inputs, given)
            reason = "every size is given or declared" if given else "every size is declared"
            self._specialize({name: kind.shape for name, kind in types.items()}, reason)
        else:
            bind_shapes([item for item in self.inputs if item.name in given], given)

    def __call__(self, *arrays: Array, **named: Array) -> Results:
        """The model's outputs for its inputs, by position or by name; on a GPU as tensors if one input is a
        tensor.

        Raises ShapeError for a wrong count, name, shape or dtype; on a GPU UserError where it, PyTorch,
        Triton or enough memory is missing.
        """
        given = self._ordered(arrays, named)
        compiled = self._compiled.get(tuple(tuple(array.shape) for array in given))
        if compiled is None:
            compiled = self._specialize(self._shapes_of(given), "first call with these shapes")
        return Results(self.outputs, compiled.program.run(given))

    def prepare(self, shapes: Mapping[str, Shape]) -> None:
        """Compiles for the shapes of all inputs, unless that was done; raises ShapeError as a call does."""
        types = bind_shapes(self.inputs, {**shapes, **self._setup.settings.shapes})
        self._specialize({name: kind.shape for name, kind in types.items()}, "prepared for these shapes")

    @property
    def plan(self) -> Plan:
        """The plan of the newest specialization; raises UserError before the first one."""
        return self._newest().plan

    def save(self, path: str | Path) -> None:
        """Writes model, weights, settings and machine code into one file for `onepass.load`.

        Raises UserError where the file cannot be written, and for a model that is compiled for a GPU.
        """
        if isinstance(self._setup, GpuSetup):
            raise UserError(
                "a model compiled for a GPU cannot be saved", where=f"target {self._setup.gpu.name}",
                why="Triton compiles its kernels again where they run",
                remedy="compile the ONNX model where it runs: kernels compiled before are kept in the code "
                "cache",
            )  # fmt: skip
        shapes = tuple(dict(record.shapes) for record in self.specializations)
        used = {
            key: data
            for compiled in self._compiled.values()
            if isinstance(compiled, Compiled)
            for key, data in compiled.objects.items()
        }
        write_bundle(Bundle(self._loaded, self._setup, shapes, used), Path(path))

    def report(self, path: str | Path) -> None:
        """Runs the model unfused and fused, for the newest shapes, and writes the report as one page.

        Raises UserError where nothing is compiled yet, nothing can be run or the file cannot be written.
        """
        self._newest()
        run = run_fusion(self._name, self._loaded, self._setup, self.specializations[-1].shapes)
        write_text(Path(path), run.html())

    def explain(self) -> Explanation | GpuExplanation:
        """What holds each operator up when run op by op on random inputs, and every decision of the plan.

        For a GPU: how each kernel of the plan fits it, as compiled.
        """
        newest = self._newest()
        if isinstance(newest, GpuCompiled):
            return GpuExplanation(kernel_rows(newest), newest)
        assert isinstance(self._setup, Setup)
        return explain(self._loaded, self._setup, self.specializations[-1].shapes)

    def _newest(self) -> Compiled | GpuCompiled:
        if not self._compiled:
            raise UserError(
                "nothing is compiled yet", why="some sizes are open: " + ", ".join(map(str, self.inputs)),
                remedy="call the model once, or give the sizes with the shapes option",
            )  # fmt: skip
        return next(reversed(self._compiled.values()))

    def _ordered(self, arrays: Sequence[Array], named: Mapping[str, Array]) -> list[Array]:
        """The arrays in the order of the inputs."""
        if not named and len(arrays) == len(self.inputs):
            return [_as_array(item.name, array) for item, array in zip(self.inputs, arrays, strict=True)]
        names = [item.name for item in self.inputs]
        remedy = "the inputs are " + ", ".join(map(str, self.inputs))
        found = dict(zip(names, arrays, strict=False))
        for name in named:
            if name in found or name not in names:
                what = "was given twice" if name in found else "does not exist"
                raise ShapeError(f"input '{name}' {what}", remedy=remedy)
        found |= named
        missing = [name for name in names if name not in found]
        if missing or len(arrays) > len(names):
            why = f"no array for {', '.join(missing)}" if missing else ""
            raise ShapeError(
                f"the model takes {len(names)} inputs, not {len(arrays) + len(named)}", why=why, remedy=remedy
            )
        return [_as_array(name, found[name]) for name in names]

    def _shapes_of(self, arrays: Sequence[Array]) -> dict[str, Shape]:
        """The shapes of a call that needs new code, checked against what is declared and what was given."""
        fixed = self._setup.settings.shapes
        for item, array in zip(self.inputs, arrays, strict=True):
            wanted, got = fixed.get(item.name, array.shape), f"got {array.dtype}{list(array.shape)}"
            if str(array.dtype).removeprefix("torch.") != item.dtype.name:
                raise ShapeError(
                    f"input '{item.name}' has the wrong element type", why=f"expected {item}, {got}",
                    remedy=f"convert it with .astype('{item.dtype}')",
                )  # fmt: skip
            if array.shape != wanted:
                raise ShapeError(
                    f"input '{item.name}' has the wrong shape", why=f"compiled for {list(wanted)}, {got}",
                    remedy="leave the input out of the shapes option to take any shape, or reshape the array",
                )  # fmt: skip
        shapes = {item.name: tuple(array.shape) for item, array in zip(self.inputs, arrays, strict=True)}
        bind_shapes(self.inputs, shapes)
        return shapes

    def _specialize(self, shapes: dict[str, Shape], reason: str) -> Compiled | GpuCompiled:
        """Code for these shapes; threads that ask for the same get the same."""
        key = tuple(shapes[item.name] for item in self.inputs)
        with self._compiling:
            if key not in self._compiled:
                graph, notes = import_onnx(self._loaded, shapes), tuple[str, ...]()
                compiled: Compiled | GpuCompiled
                if isinstance(self._setup, GpuSetup):
                    compiled = self._setup.compile(graph)
                else:
                    compiled = self._setup.compile(graph, self._known)
                    self._known.update(compiled.objects)
                    notes = compiled.cache_notes()
                explained = f"{reason}; {self._note}" if self._note else reason
                self.specializations.append(Specialization(
                    shapes, explained, compiled.compile_s, compiled.hits, compiled.misses, notes,
                ))  # fmt: skip
                self._compiled[key] = compiled
            return self._compiled[key]

    def __repr__(self) -> str:
        made = len(self.specializations)
        inputs = ", ".join(map(str, self.inputs))
        return f"<onepass.Model ({inputs}) -> {', '.join(self.outputs)}; {made} specializations>"


def _as_array(name: str, given: object) -> Array:
    """What was given for the input `name`, tensors as they are; raises ShapeError where that is no array."""
    if hasattr(given, "data_ptr"):
        return cast(Array, given)
    try:
        return np.asarray(given)
    except ValueError as error:
        raise ShapeError(f"input '{name}' is not an array", why=str(error)) from error


def _is_bound(inputs: Sequence[InputDescription], shapes: Mapping[str, Shape]) -> bool:
    """Whether every size is declared, given, or named by a symbol whose size is given."""
    bound = {dim for item in inputs if item.name in shapes for dim in item.dims or ()} - {"?"}
    return all(
        item.name in shapes
        or (item.dims is not None and all(isinstance(dim, int) or dim in bound for dim in item.dims))
        for item in inputs
    )
