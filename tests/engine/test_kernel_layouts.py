"""Formats stored as GPU kernels read them, held to places that their sources name."""

from __future__ import annotations

import torch

from tests.engine.kernel_layouts import eetq, exl2, marlin
from tgi_core.engine.quantization.formats.eetq import Eetq
from tgi_core.engine.quantization.formats.marlin import Marlin


def test_marlin_by_groups() -> None:
    """Groups of 128 of 256 inputs: the writer's numbers, from its tensors."""
    matrix = torch.randn(128, 256, generator=torch.Generator().manual_seed(1))
    parts, plain = marlin(128)(matrix)
    weight = Marlin({"quant_method": "marlin", "group_size": 128}).unpack(parts, torch.float32)
    assert torch.equal(weight.dequantize(), plain)


def test_words_of_marlin() -> None:
    """Fields 0 to 7 of the first word are codes of rows 0, 8, 0, 8, 1, 9, 1 and 9, of columns 0 and 8 in turn: the registers of thread 0 in
    mma.m16n8k16."""
    words = torch.zeros(1, 128, dtype=torch.int32)
    words[0, 0] = 0x76543210
    one = torch.ones(1, 64, dtype=torch.float16)
    found = Marlin({}).unpack({"B": words, "s": one}, torch.float32).dequantize().T + 8
    places = [(0, 0), (8, 0), (0, 8), (8, 8), (1, 0), (9, 0), (1, 8), (9, 8)]
    assert [int(found[place]) for place in places] == list(range(8))
    assert int(found.sum()) == sum(range(8))


def test_bytes_of_eetq() -> None:
    """The first 16 bytes are inputs 0, 8, 1, 9, 2, 10, … of output 0: the map of 16 rows, then the swap in each four. Output 1 begins at
    byte 64, and a stored byte 0x80 is 0."""
    stored = torch.full((64, 2), -128, dtype=torch.int8)
    stored.view(-1)[:16] = (torch.arange(16) - 128).to(torch.int8)
    stored.view(-1)[64] = 5 - 128
    found = Eetq({}).unpack({"weight": stored, "weight_scales": torch.ones(2, dtype=torch.float16)}, torch.float32).dequantize()
    assert found[0, [0, 8, 1, 9, 2, 10, 3, 11]].tolist() == list(range(8)) and found[1, 0] == 5
    assert set(eetq(torch.randn(4, 96))[0]) == {"weight"}


def test_words_of_exl2() -> None:
    """Codes of six bits fill five and a third to a word, as a stream."""
    parts, _ = exl2(torch.randn(8, 32))
    assert parts["q_groups"].tolist() == [6, 0] and parts["q_weight"].shape == (6, 8)
