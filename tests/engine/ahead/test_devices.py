"""A step on a device that isn't here: torch's fake tensors know on which device everything lies, and hold no numbers to ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.ahead.late import LateKit, LateQueue
from tgi_core.backend import OutputOptions, Request, Sampling
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.ahead.in_flight import InFlightStep
from tgi_core.engine.ahead.steps import DeviceSteps
from tgi_core.engine.attention.torch_sdpa import TorchAttention
from tgi_core.engine.lora.adapters import Adapters
from tgi_core.engine.models.attention_layers import use_ragged_attention
from tgi_core.engine.models.build import shape_of
from tgi_core.engine.ragged import RaggedRunner

VOCAB = 512


class Watch(TorchDispatchMode):
    """Counts what brings numbers from the device to the host, and refuses to wait for any."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        self.to_host = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.operators += 1
        given = {leaf.device.type for leaf in _tensors((args, kwargs))}
        if given - {"cpu"} and any(leaf.device.type == "cpu" for leaf in _tensors(out)):
            quick = func.overloadpacket is torch.ops.aten.copy_ and (args[2:] == (True,) or kwargs.get("non_blocking"))
            assert quick, f"{func} waits for the device"
            self.to_host += 1
        return out


_WIDENING = {Tensor.long: torch.int64, Tensor.float: torch.float32, Tensor.double: torch.float64}
_COPYING = {"dtype", "device", "non_blocking"}


def _kind(value: object) -> str:
    """By which name `Tensor.to` takes an argument."""
    return "dtype" if isinstance(value, torch.dtype) else "device" if isinstance(value, torch.device | str) else "other"


class Driverless(TorchFunctionMode):
    """Indexing and attention in other operators: torch's own ask for the device's driver before they do anything."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func in (Tensor.__getitem__, Tensor.numpy) and not isinstance(args[0], FakeTensor):  # the queue's memory on the host
            with no_dispatch():
                return func(*args)
        if func is Tensor.__getitem__:
            return _indexed(args[0], args[1] if isinstance(args[1], tuple) else (args[1],))
        if func is Tensor.contiguous:
            return torch.clone(args[0], memory_format=torch.contiguous_format)
        if func is Tensor.copy_:
            return torch.ops.aten.copy_(*args, **(kwargs or {}))
        if func is Tensor.__invert__:
            return torch.bitwise_not(args[0])
        if func in _WIDENING:
            return torch.ops.aten._to_copy(args[0], dtype=_WIDENING[func])
        if func is Tensor.to:
            names = dict(kwargs or {}) | {_kind(value): value for value in args[1:]}
            return torch.ops.aten._to_copy(args[0], **names) if names.keys() <= _COPYING else func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            query, key, value = args
            scores = query @ key.transpose(-1, -2)
            mask = (kwargs or {}).get("attn_mask")
            return (scores if mask is None else scores + mask).softmax(-1) @ value
        return func(*args, **(kwargs or {}))


def _indexed(tensor: Tensor, places: tuple[Any, ...]) -> Tensor:
    if Ellipsis in [place for place in places if not isinstance(place, Tensor)]:
        at = places.index(Ellipsis)
        rest = len([place for place in places if place is not None]) - 1
        places = (*places[:at], *[slice(None)] * (tensor.dim() - rest), *places[at + 1 :])
    dim = 0
    for place in places:
        if place is None:
            tensor = tensor.unsqueeze(dim)
        elif isinstance(place, int):
            tensor, dim = torch.ops.aten.select(tensor, dim, place), dim - 1
        elif isinstance(place, slice):
            tensor = torch.ops.aten.slice(tensor, dim, place.start, place.stop, place.step or 1)
        else:
            tensor = tensor.index_select(dim, place)
        dim += 1
    return tensor


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


class HereQueue(LateQueue):
    """A queue that enqueues at once; its memory on the host is real, to be filled in."""

    def run(self, work: Any) -> None:
        """Now."""
        work()

    def host(self, count: int, dtype: torch.dtype) -> Tensor:
        """Real."""
        with no_dispatch():
            return torch.zeros(count, dtype=dtype)


class FarKit(LateKit):
    """A kit of a device that isn't here."""

    def __init__(self, device: str) -> None:
        super().__init__(HereQueue())
        self.device = torch.device(device)


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_a_step_stays_on_its_device(device: str, llama: Path) -> None:
    """Prefill, mixed and decode steps of rows that the device samples, and the forward pass of others, ask the host for nothing.

    What comes back to the host is one copy a step, which nobody waits for. No operator mixes devices.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(llama)).eval()
    shape = shape_of(model, torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(), Driverless():
        for module in model.modules():
            _move(module, torch.device(device))
        call, seen = use_ragged_attention(model)
        kit = FarKit(device)
        adapters = Adapters(model, (), torch.float32, kit.device)
        runner = RaggedRunner(call, tuple(seen.shapes), shape, kit, TorchAttention(), adapters)
        runner.use_probe_cache()
        steps = DeviceSteps(runner, HereQueue(), kit.device, 4, 8, shape.vocab_size)
        with Watch() as watch:
            _schedule(steps)
    assert watch.operators > 100 and watch.to_host == 4


def _move(module: nn.Module, device: torch.device) -> None:
    for name, value in module.named_parameters(recurse=False):
        fake = torch.empty(value.shape, dtype=value.dtype, device=device)
        module._parameters[name] = nn.Parameter(fake, requires_grad=False)
    for name, buffer in module.named_buffers(recurse=False):
        module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)


def _schedule(steps: DeviceSteps) -> list[InFlightStep]:
    kinds = ({}, {"sampling": Sampling(do_sample=True, seed=1)}, {"want": OutputOptions(prompt_logprobs=True, top_n=2)})
    rows = [
        RowState(Request(id, (1,) * 20, 20, 0, ((),), 20, **kinds[id - 1]), [1] * 20, 20, ([1, 2],))  # type: ignore[arg-type]
        for id in (1, 2, 3)
    ]
    live = {1, 2, 3}
    first = steps.enqueue([RowInput(rows[0], 0, 12, yields=False), RowInput(rows[1], 0, 20, yields=True)], live)
    mixed = [RowInput(rows[1], 20, 1, yields=True), RowInput(rows[0], 12, 8, yields=True), RowInput(rows[2], 0, 20, yields=True)]
    second = steps.enqueue(mixed, live)
    third = steps.enqueue([RowInput(row, 20 + (row is rows[1]), 1, yields=True) for row in rows[:2]], live)
    return [first, second, third, steps.enqueue([RowInput(row, 21 + (row is rows[1]), 1, yields=True) for row in rows[:2]], live)]
