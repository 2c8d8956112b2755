"""ONNX's own node cases, through the importer, by reference and by stages, in the model's dtypes."""

import warnings
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import defs, numpy_helper
from stage_evaluation import evaluate as evaluate_stages

from onepass.core.dtypes import DTYPES
from onepass.core.errors import ModelError
from onepass.core.tolerance import compare
from onepass.frontends.onnx_import import import_onnx
from onepass.graph.interpret import evaluate
from onepass.graph.passes import fold_constants, simplify_views
from onepass.graph.verify import verify

# The cases' own expectations differ from ONNX's text, or leave the result open.
EXCUSED = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad": "expects figures typed in with four digits",
    "test_resize_downsample_scales_linear_align_corners": "takes a fractional length",
}
REFUSED = (
    "does not support", "is not supported", "computed from the model's inputs", "uses opset", "no opset",
    "element type",
)  # fmt: skip


def array(value):
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


@pytest.fixture(scope="module")
def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases  # noqa: PLC0415  (generates 1,900 models)

        return [case for case in collect_testcases(None) if case.model is not None]


def run_case(case):
    """'passed' or 'refused'; raises for a wrong result."""
    inputs, expected = ([array(value) for value in values] for values in case.data_sets[0])
    names = [value.name for value in case.model.graph.input]
    given = {name: value for name, value in zip(names, inputs, strict=False) if isinstance(value, np.ndarray)}
    if any(value.dtype.name not in DTYPES for value in given.values()):
        return "refused"
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    for entry in model.opset_import:
        if not entry.domain and entry.version > 23 and all(is_older(node) for node in model.graph.node):
            entry.version = 23
    # Parameters that the cases pass at run time become initializers: sizes have to be known.
    for name in [n for n in given if any(is_parameter(node, n) for node in model.graph.node)]:
        model.graph.initializer.append(numpy_helper.from_array(given.pop(name), name))
    try:
        graph = import_onnx(model, {name: value.shape for name, value in given.items()})
    except ModelError as error:
        assert any(reason in str(error) for reason in REFUSED), f"{case.name}: {error}"
        return "refused"
    verify(graph)
    simplified = simplify_views(fold_constants(graph))
    verify(simplified)
    found = evaluate(graph, given)
    for who, outputs in (("reference", found), ("stages", by_stages(graph, given))):
        for name, want in zip(graph.outputs, expected, strict=False):
            assert outputs[name].dtype == want.dtype, f"{who}: {outputs[name].dtype}, not {want.dtype}"
            comparison = compare(outputs[name], want, reduction_length=want.size)
            assert comparison.within, f"{who}: {comparison}"
    for name, value in evaluate(simplified, given).items():
        assert value.tobytes() == found[name].tobytes(), f"{case.name}: a pass changed a bit"
    return "passed"


def by_stages(graph, given):
    """The graph's values, each op by its stages."""
    values = {**graph.constants, **given}
    for node in graph.nodes:
        lowering = node.opdef.lower([graph.types[name] if name else None for name in node.inputs], node.attrs)
        outputs = evaluate_stages(lowering, [values[name] if name else None for name in node.inputs])
        values.update(zip(node.outputs, outputs, strict=False))
    return values


def is_older(node):
    """Whether the newest schema of the op is one of opset 23 or before."""
    return defs.has(node.op_type) and defs.get_schema(node.op_type).since_version <= 23


def is_parameter(node, name):
    """Whether the input is one that has to be known at import."""
    known = (0, 1, 2) if node.op_type == "Range" else range(1, 9)
    positions = known if node.op_type in PARAMETRIC else ()
    return any(node.input[p] == name for p in positions if p < len(node.input))


PARAMETRIC = {
    "Reshape", "Slice", "Pad", "Expand", "Tile", "Split", "Squeeze", "Unsqueeze", "Resize", "Upsample",
    "Dropout", "Range", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
    "ReduceL2", "ReduceSumSquare",
}  # fmt: skip


def test_node_cases(cases):
    counts, wrong = Counter(), []
    for case in cases:
        try:
            counts[run_case(case)] += 1
        except Exception as error:
            if case.name not in EXCUSED:
                wrong.append(f"{case.name}: {type(error).__name__} {error}"[:300])
    print(f"ONNX node cases: {dict(counts)}, {len(wrong)} wrong, {len(EXCUSED)} excused")
    assert not wrong, "\n".join(wrong)
    assert counts["passed"] >= 815
