"""What any implementation of `Operators` must do, against textbook formulas in double precision."""

from __future__ import annotations

import cmath

import torch
from torch import Tensor

from tgi_core.engine.attention.cache import CacheScales, LayerCache, LayerShape
from tgi_core.engine.decoder.operators import HeadNorms, Heads, HeadSizes, Operators
from tgi_core.engine.experts import Activation, Experts, Routing

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
WIDTHS = (1, 7, 64, 96, 300, 1027)
HEADS = (
    (HeadSizes(4, 2, 16), 16),
    (HeadSizes(6, 1, 20), 8),
    (HeadSizes(5, 5, 7), 6),
    (HeadSizes(3, 3, 64), 0),
    (HeadSizes(2, 1, 576), 64),
)
"""With how many numbers of a head are turned."""
BLOCK = 16


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, wanted: Tensor, roundings: int = 1) -> bool:
    """Whether tensors agree but for so many roundings to the dtype of what was found."""
    unit = max(torch.finfo(found.dtype).eps, 4e-6)
    return torch.allclose(found.double(), wanted.double(), rtol=roundings * unit, atol=roundings * unit)


def normed(values: Tensor, weight: Tensor) -> Tensor:
    """The RMS norm."""
    values = values.double()
    return values / (values.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


def check_norms(operators: Operators, dtype: torch.dtype, width: int) -> None:
    """A norm, and a norm of what a scaled branch has joined, which the stream then holds."""
    stream, branch, weight = (noise(*shape, seed=seed).to(dtype) for seed, shape in enumerate(((5, width), (5, width), (width,))))
    assert close(operators.norm(stream, weight, 1e-6), normed(stream, weight))
    joined = stream.double() + 0.3 * branch.double()
    found = operators.add_and_norm(stream, branch, 0.3, weight, 1e-6)
    assert close(stream, joined) and found.dtype is dtype
    assert close(found, normed(stream, weight))


def check_silu_mul(operators: Operators, dtype: torch.dtype, width: int) -> None:
    """SiLU of gates times ups, far from zero too."""
    gate_up = 3 * noise(5, 2 * width).to(dtype)
    gate_up[0, 0], gate_up[1, width - 1] = 80, -80
    gate, up = gate_up.double().chunk(2, -1)
    assert close(operators.silu_mul(gate_up), gate * up / (1 + (-gate).exp()))


ACTIVATIONS = (Activation(), Activation(1.7, 1.0, 0.8))
ROUTINGS = (
    Routing(4, 2, True),
    Routing(3, 1, False),
    Routing(5, 3, False, 2, True),
    Routing(3, 3, True, 1),
    Routing(12, 3, False, 1, groups=4, kept_groups=2, scale=3.0),
    Routing(12, 4, True, 1, sigmoid=True, groups=4, kept_groups=2, scale=2.5),
)


def check_experts(operators: Operators, dtype: torch.dtype, routing: Routing, tokens: int, activation: Activation) -> None:
    """Tokens run the experts with the largest logits, of equal ones any, and the shared ones, each times its weight; the next norm sums
    them. All tokens choose the first expert, none the last."""
    hidden, inner, count = 40, 24, routing.experts + routing.shared
    logits = noise(tokens, routing.logits, seed=1).to(dtype)
    logits[:, 0], logits[:, routing.experts - 1] = 9, -9
    biases = (noise(count, 2 * inner, seed=4), noise(count, hidden, seed=5)) if activation.limit else (None, None)
    weights = (noise(count, 2 * inner, hidden, seed=2) * hidden**-0.5, noise(count, hidden, inner, seed=3) * inner**-0.5)
    experts = Experts(*(None if each is None else each.to(dtype) for each in (*weights, *biases)), activation)  # type: ignore[arg-type]
    correction = noise(routing.experts, seed=7) / 4 if routing.sigmoid else None
    chosen = operators.route(logits, routing, correction)
    shares = logits[:, : routing.experts].double()
    shares = shares.sigmoid() if routing.sigmoid else shares.softmax(-1)
    for token in range(tokens):
        ids = chosen.ids[token].tolist()
        best = _best_experts(shares[token] + (0 if correction is None else correction), routing)
        assert ids == [*best, *range(routing.experts, count)]
        own = routing.scale * shares[token, best] / (shares[token, best].sum() if routing.normalized else 1)
        one = logits[token, -1].double().sigmoid() if routing.gated else torch.ones((), dtype=torch.float64)
        assert close(chosen.weights[token], torch.cat((own, one.expand(routing.shared))))
    rows = noise(tokens, hidden).to(dtype)
    made = operators.experts(rows, chosen, experts)
    assert made.shape == (tokens, routing.chosen, hidden) and made.dtype is dtype
    wanted = torch.stack([_expert(rows.double(), experts, chosen.ids[:, place]) for place in range(routing.chosen)], 1)
    wanted *= chosen.weights.double().unsqueeze(-1)
    assert close(made, wanted, 8)
    stream = noise(tokens, hidden, seed=6).to(dtype)
    joined = stream.double() + 0.3 * made.double().sum(1)
    operators.add_and_norm(stream, made, 0.3, torch.ones(hidden, dtype=dtype), 1e-6)
    assert close(stream, joined, 2)


def _best_experts(scores: Tensor, routing: Routing) -> list[int]:
    """The experts with the highest scores [experts] of the best groups, in order."""
    groups = torch.arange(routing.experts).chunk(routing.groups)

    def rank(group: Tensor) -> float:
        return float(scores[group].sort(descending=True).values[: 2 if routing.sigmoid else 1].sum())

    kept = torch.cat(sorted(groups, key=rank, reverse=True)[: routing.kept_groups]).tolist()
    return sorted(kept, key=lambda expert: -float(scores[expert]))[: routing.top]


def _expert(rows: Tensor, experts: Experts, ids: Tensor) -> Tensor:
    """Each row by the expert that it has chosen, in double precision."""
    found = []
    for row, expert in zip(rows, ids.tolist(), strict=True):
        both = experts.gate_up[expert].double() @ row
        both = both if experts.gate_up_bias is None else both + experts.gate_up_bias[expert].double()
        out = experts.down[expert].double() @ experts.activation(*both.chunk(2))
        found.append(out if experts.down_bias is None else out + experts.down_bias[expert].double())
    return torch.stack(found)


def check_store(
    operators: Operators, dtype: torch.dtype, sizes: HeadSizes, turned: int, with_norms: bool, kept: torch.dtype | None = None
) -> None:
    """Queries and keys are normed and turned, keys and values lie at their slots, and slot −1 is written nowhere.

    `kept` is a cache's dtype of 8 bits, three of them behind the point; it keeps them over its scales.
    """
    positions, slots = torch.tensor([3, 0, 9, 4, 5, 0]), torch.tensor([17, 30, 16, 40, -1, -1])
    qkv = noise(6, (sizes.heads + 2 * sizes.kv_heads) * sizes.head).to(dtype)
    angles = torch.arange(10).double().unsqueeze(1) * noise(turned // 2, seed=1).double()
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).float() if turned else None
    norms = HeadNorms(noise(sizes.head, seed=2).to(dtype), noise(sizes.head, seed=3).to(dtype), 1e-6) if with_norms else None
    shape = LayerShape(sizes.kv_heads, sizes.head, sizes.head, scales=CacheScales(0.5, 0.25))
    cache = LayerCache(shape, 3, BLOCK, kept or dtype, torch.device("cpu"))
    heads = qkv.double().unflatten(-1, (-1, sizes.head))
    query, key, value = heads.split([sizes.heads, sizes.kv_heads, sizes.kv_heads], 1)
    if norms is not None:
        query, key = normed(query, norms.query), normed(key, norms.key)
    query, key = (turned_by_hand(part.clone(), angles[positions]) for part in (query, key))
    found = operators.rope_and_cache(qkv, positions, slots, Heads(sizes, cos_sin, norms), cache)
    assert close(found.transpose(0, 1), query, 2)
    written = slots[:4]
    keys, values = cache.flat_keys.to(dtype) * cache.scales.key, cache.flat_values.to(dtype) * cache.scales.value
    if kept is None:
        assert close(keys[written], key[:4], 2) and torch.equal(values[written].double(), value[:4])
    else:
        assert rounded(keys[written], key[:4]) and rounded(values[written], value[:4])
    others = torch.ones(4 * BLOCK, dtype=torch.bool).index_fill_(0, written, False).nonzero().flatten()  # the last is for waste
    assert not keys[others].any() and not values[others].any()


def rounded(found: Tensor, exact: Tensor) -> bool:
    """Whether numbers differ by no more than rounding to three bits behind the point makes them (with the dtype's own, a little more)."""
    return bool(((found.double() - exact).abs() <= exact.abs() / 15 + 2**-9).all())


def turned_by_hand(heads: Tensor, angles: Tensor) -> Tensor:
    """heads [tokens, heads, head], each pair as a complex number times another of length 1."""
    half = angles.shape[-1]
    for token in range(heads.shape[0]):
        for pair in range(half):
            factor = cmath.exp(1j * float(angles[token, pair]))
            for head in range(heads.shape[1]):
                number = complex(heads[token, head, pair], heads[token, head, pair + half]) * factor
                heads[token, head, pair], heads[token, head, pair + half] = number.real, number.imag
    return heads
