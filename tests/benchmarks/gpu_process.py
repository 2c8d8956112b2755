"""The GPU benchmark on small workloads in Triton's interpreter; run with TRITON_INTERPRET=1."""

import sys

import torch

import gpu
from onepass.core.dtypes import F16, F32

SMALL = (
    gpu.Workload("pointwise_chain", (4, 64), F32), gpu.Workload("layer_norm_chain", (4, 64), F32),
    gpu.Workload("softmax", (3, 40), F16), gpu.Workload("conv_bn_relu", (2, 16, 5, 5), F16),
)  # fmt: skip


class Processor(gpu.Device):
    def __init__(self):
        self.torch, self.target, self.name = torch, "cuda:sm_90", "cpu"

    def wait(self):
        pass


def broken(*_, **__):
    def run(*given):
        raise RuntimeError("no compiler here")

    return run


gpu.Device, torch.compile = Processor, broken
torch.cuda.get_device_name = lambda _: "interpreted"
whole_roofs = gpu.roofs
gpu.roofs = lambda device: whole_roofs(device, 1 << 10, 16)
gpu.BUDGET_S = 0.0
if "--wrong" in sys.argv:
    gpu.evaluate = lambda graph, *_: {name: 2.0 + 0 * value for name, value in {
        name: gpu.np.zeros(graph.types[name].shape) for name in graph.outputs}.items()}  # fmt: skip
sys.exit(gpu.main(["--output", sys.argv[1], "--rounds", "1"], SMALL[: int(sys.argv[2])]))
