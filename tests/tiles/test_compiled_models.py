"""Whole models compiled for a GPU that is not there: what is chosen spills nothing, and can be launched."""

from pathlib import Path

import pytest

from onepass.core.dtypes import F16
from onepass.core.settings import Settings
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx
from onepass.gpu_pipeline import compile_for_gpu
from onepass.zoo import catalog

pytest.importorskip("triton")


def test_resnet_in_float16(tmp_path: Path) -> None:
    loaded = load_onnx(catalog.build("resnet50"))
    graph = import_onnx(loaded, catalog.default_shapes(loaded.proto))
    compiled = compile_for_gpu(graph, Settings(), "cuda:sm_90", tmp_path, F16)
    assert len(compiled.kernels) < 60
    for kernel in compiled.kernels:
        assert not kernel.compiled.refusal
        assert kernel.compiled.resources is not None and kernel.compiled.resources.spill_bytes == 0
        assert kernel.occupancy.launches
    products = [k for k in compiled.kernels if "tl.dot" in k.built.kernel.source]
    assert len(products) >= 50
    assert all(k.compiled.matrix_instruction for k in products)
