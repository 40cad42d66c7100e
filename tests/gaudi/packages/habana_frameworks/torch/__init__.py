"""What `tgi_backend_gaudi` may use of habana_frameworks 1.24, with its signatures, on the CPU: `torch.hpu`, the compiler, collectives.

Names and arities are those of the bridge's source (1.19) and of vLLM's plugin for 1.24; anything else is an AttributeError or a TypeError.
The compiler runs a graph as it was captured, of one shape. Tensors are the CPU's. `STANDIN_BYTES`: the device's memory;
`STANDIN_TAKEN`: its device cannot be acquired; `STANDIN_FEW`: few sizes of programs, each of which takes a second to compile here.
"""

import os

import torch

from habana_frameworks.torch import core, hpu, utils
from habana_frameworks.torch.hpu.compiler import compile_graph

assert "PT_HPU_LAZY_MODE" in os.environ, "the bridge's mode is chosen before it is imported"
torch._dynamo.register_backend(compile_graph, name="hpu_backend")  # in eager mode the bridge, too, imports torch's compiler
torch.hpu = hpu.device_module

from tgi_backend_gaudi.runtime import HabanaRuntime  # noqa: E402

HabanaRuntime.device_type = "cpu"  # no build of torch without the bridge makes tensors on "hpu"
if os.environ.get("STANDIN_FEW"):
    from tgi_backend_gaudi.kit import GaudiKit

    from tgi_core.engine.static.buckets import BucketRules

    GaudiKit.rules = BucketRules(takes=(128,), waste=0.45)
__all__ = ["core", "hpu", "utils"]
