"""The vendor's wheels, as far as optimum-neuron calls them for one core: layers in plain torch, and a compiler that runs its modules.

All else of them can be imported, and is good for nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAMES = ("libneuronxla", "neuronx_distributed", "neuronxcc", "nki", "torch_neuronx", "torch_xla")
COMPILED: list[str] = []
"""The names of the graphs that were compiled."""


class ColumnParallelLinear(nn.Module):
    """The whole layer: one core has all columns."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gather_output: bool = True,
        dtype: torch.dtype = torch.float32,
        **more: Any,
    ) -> None:
        super().__init__()
        assert not set(more) - {"pad", "tensor_model_parallel_group"}
        self.gather_output = gather_output
        self.weight = nn.Parameter(torch.zeros(output_size, input_size, dtype=dtype))
        self.register_parameter("bias", nn.Parameter(torch.zeros(output_size, dtype=dtype)) if bias else None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply it."""
        return F.linear(inputs, self.weight, self.bias)


class RowParallelLinear(ColumnParallelLinear):
    """The whole layer: one core has all rows."""

    def __init__(
        self, *sizes: int, input_is_parallel: bool = False, reduce_dtype: torch.dtype | None = None, **more: Any
    ) -> None:
        super().__init__(*sizes, **more)


class ParallelEmbedding(nn.Module):
    """The whole table."""

    def __init__(
        self, count: int, width: int, padding: int | None = None, *, dtype: torch.dtype, shard_across_embedding: bool, pad: bool
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, width, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        """Look up."""
        return F.embedding(ids, self.weight)


class SPMDRank(nn.Module):
    """The only rank."""

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self.rank = nn.Parameter(torch.zeros(world_size, dtype=torch.int32), requires_grad=False)

    def get_rank(self) -> Tensor:
        """0."""
        return self.rank[0]


class RmsNorm:
    """The vendor's normalization."""

    @staticmethod
    def apply(hidden: Tensor, weight: Tensor, epsilon: float, dim: int) -> Tensor:
        """Over the last dimension."""
        assert dim == hidden.dim() - 1
        return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def xla_hlo_call(build: Callable[..., Any]) -> Callable[..., Tensor]:
    """The only operator that is built so is XLA's DynamicUpdateSlice; `fill_prefix` starts at 0."""

    def update(tensor: Tensor, new: Tensor, *starts: Tensor) -> Tensor:
        assert build.__name__ in ("fill_prefix", "xla_dynamic_update_slice")
        places = [int(start) for start in starts] or [0] * tensor.dim()
        out = tensor.clone()
        out[tuple(slice(start, start + size) for start, size in zip(places, new.shape, strict=True))] = new
        return out

    return update


class BaseModelInstance:
    """What a builder is given."""


class Traced:
    """Compiled graphs, each for the shapes and dtypes of its example; outputs beside the first are the cache, which they alias."""

    def __init__(self, graphs: dict[str, tuple[nn.Module, Sequence[Tensor]]]) -> None:
        self._graphs, self.nxd_model = graphs, self
        modules = [module for module, _ in graphs.values()]
        for module in modules[1:]:
            module.kv_mgr.past_key_values = modules[0].kv_mgr.past_key_values  # type: ignore[union-attr]

    def initialize(self, weights: Sequence[dict[str, Tensor]], start_rank: Tensor) -> None:
        """Load the weights of the only rank."""
        for module, _ in self._graphs.values():
            missing, unexpected = module.load_state_dict(weights[0], strict=False)
            assert not [name for name in missing if "kv_mgr" not in name], missing
            assert not unexpected, unexpected

    @torch.no_grad()
    def __call__(self, *inputs: Tensor) -> Tensor:
        shapes = [(tuple(each.shape), each.dtype) for each in inputs]
        for module, example in self._graphs.values():
            if [(tuple(each.shape), each.dtype) for each in example] == shapes:
                logits, *cache = module(*inputs)
                for held, new in zip(module.kv_mgr.past_key_values, cache, strict=True):  # type: ignore[union-attr]
                    held.copy_(new)
                return logits
        raise RuntimeError(f"no graph was compiled for {shapes}")


class ModelBuilder:
    """Compiles graphs by keeping their modules, and lays out weights for one core."""

    def __init__(
        self, *, tp_degree: int, checkpoint_loader: Callable[[], dict[str, Tensor]] | None = None, **unused: Any
    ) -> None:
        assert tp_degree == 1
        self._loader, self._graphs = checkpoint_loader, dict[str, tuple[Any, Sequence[Tensor]]]()

    def add(self, key: str, model_instance: Any, example_inputs: Sequence[Sequence[Tensor]], **unused: Any) -> None:
        """One graph."""
        model_instance.load_module()
        self._graphs[key] = (model_instance, example_inputs[0])

    def trace(self, initialize_model_weights: bool) -> Traced:
        """Compile them."""
        assert not initialize_model_weights
        COMPILED.extend(self._graphs)
        return Traced({key: (instance.get(0)[0], example) for key, (instance, example) in self._graphs.items()})

    def shard_checkpoint(self, serialize_path: str | None = None) -> list[dict[str, Tensor]]:
        """The weights, with the names that the modules give them."""
        assert serialize_path is None, "weights would be written beside the compiled model"
        assert self._loader is not None
        weights = self._loader()
        instance, _ = self._graphs["token_generation"]
        for name, module in instance.module.named_modules():
            if hasattr(module, "preshard_hook"):
                module.preshard_hook(weights, f"{name}.weight")
        return [weights]


def install() -> None:
    """Let them be imported."""
    sys.meta_path.insert(0, _Finder())
    group = types.SimpleNamespace(size=lambda: 1)
    _module("neuronx_distributed.parallel_layers.layers", ColumnParallelLinear, RowParallelLinear, ParallelEmbedding, SPMDRank)
    state = _module("neuronx_distributed.parallel_layers.parallel_state")
    state.model_parallel_is_initialized = lambda: True
    state.get_tensor_model_parallel_group = lambda: group
    _module("neuronx_distributed.parallel_layers.utils").divide = lambda whole, parts: whole // parts
    _module("neuronx_distributed.parallel_layers.pad").get_number_of_extra_heads = lambda heads, cores: -heads % cores
    _module("neuronx_distributed.trace.model_builder", ModelBuilder, BaseModelInstance)
    _module("neuronx_distributed.trace.hlo_utils").NXD_LAYOUT_TRANSFORMATION_OPTIONS = "NXD_LAYOUT_TRANSFORMATION_OPTIONS"
    _module("torch_neuronx.xla_impl.ops", RmsNorm, xla_hlo_call)
    _module("neuronxcc").__version__ = "2.21.33363.0"


def _module(name: str, *members: Any) -> Any:
    """Import one, and put these into it and it into its parent."""
    module = importlib.import_module(name)
    for member in members:
        setattr(module, member.__name__, member)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(_module(parent), last, module)
    return module


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes modules of the vendor's names up."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Any below `NAMES`."""
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in NAMES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        """One that has everything."""
        module = MagicMock(name=spec.name)
        module.__name__, module.__path__, module.__spec__ = spec.name, [], spec
        return module

    def exec_module(self, module: Any) -> None:
        """There is nothing in it."""
