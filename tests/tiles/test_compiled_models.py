"""Whole models compiled for a GPU that is not there: what is chosen spills nothing, and can be launched."""

import re
from pathlib import Path

import pytest

from onepass.core.dtypes import F16
from onepass.core.settings import Settings
from onepass.frontends.onnx_import import import_onnx
from onepass.frontends.onnx_model import load_onnx
from onepass.gpu_pipeline import compile_for_gpu
from onepass.zoo import catalog

pytest.importorskip("triton")


def compiled(name, dtype, folder):
    loaded = load_onnx(catalog.build(name))
    graph = import_onnx(loaded, catalog.default_shapes(loaded.proto))
    found = compile_for_gpu(graph, Settings(), "cuda:sm_90", folder, dtype)
    for kernel in found.kernels:
        assert kernel.compiled.resources is not None and not kernel.compiled.refusal
        assert kernel.spill_bytes == 0 and kernel.occupancy.launches
    inside = [decision for decision in found.plan.decisions if decision.home != "memory"]
    assert inside and all(decision.fits and not decision.fits[-1].objection for decision in inside)
    return found


def check_bytes(found):
    """What is predicted to move is what lies behind the parameters of a kernel, each read once."""
    checked = 0
    for kernel in found.kernels:
        region = found.plan.regions[kernel.region]
        partly = {node.op for node in region.nodes} & {"gather", "slice"}  # they do not read all of it
        if region.form not in ("pointwise", "row") or partly:
            continue
        predicted = sum(region.estimate.traffic.bytes_at.values())
        behind = sum(param.size_bytes for param in kernel.built.kernel.params)
        assert predicted == pytest.approx(behind, rel=0.05)  # the figure to hold
        reads = re.findall(r"tl\.load\((p\d+)", kernel.built.kernel.source)
        writes = re.findall(r"tl\.store\((p\d+)", kernel.built.kernel.source)
        assert sorted(reads + writes) == sorted(f"p{k}" for k in range(len(kernel.built.args)))
        checked += 1
    return checked


def test_resnet_in_float16(tmp_path: Path) -> None:
    found = compiled("resnet50", F16, tmp_path)
    assert len(found.kernels) < 60
    products = [k for k in found.kernels if "tl.dot" in k.built.kernel.source]
    assert sum(kernel.built.kernel.source.count("tl.dot(") for kernel in products) >= 50
    assert all(k.compiled.matrix_instruction for k in products)
    assert check_bytes(found) == 1


def test_bert_in_float16(tmp_path: Path) -> None:
    found = compiled("bert_base", F16, tmp_path)
    # Twelve layers are compiled once: as many kernels as one of them has, and those around.
    assert len(list(tmp_path.iterdir())) < len(found.kernels) / 8
    assert check_bytes(found) == 24
    attention = [k for k in found.kernels if found.plan.regions[k.region].form == "chain"]
    assert len(attention) == 12 and all(kernel.compiled.matrix_instruction for kernel in attention)
    for kernel in attention:
        assert {"softmax", "matmul"} <= {node.op for node in found.plan.regions[kernel.region].nodes}


def test_convnext_in_float32(tmp_path: Path) -> None:
    found = compiled("convnext_tiny", None, tmp_path)
    assert not any(kernel.compiled.matrix_instruction for kernel in found.kernels)
    assert check_bytes(found) > 30
