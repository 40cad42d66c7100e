"""Models that compute attention by themselves: on blocks, row by row, with all else for all rows at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.engine.mixed_rows import check_rows_alone, check_shared_prefix
from tests.engine.tiny_configs import TRANSFORMERS_5
from tests.engine.tiny_models import expected_tokens, open_cpu, path_of, ragged_schedule, save_tiny
from tgi_core.backend import CacheKind, InvalidModel, WarmupPlan
from tgi_core.engine.rows.lockstep import Lockstep
from tgi_core.engine.rows.token_wise import token_wise_modules

ROWS = 12
FAMILIES = ("doge",) if TRANSFORMERS_5 else ("jetmoe", "diffllama")


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_together_equal_rows_alone(family: str, tmp_path: Path) -> None:
    """Greedy and seeded rows that join whole or in chunks: each makes the tokens that it makes alone."""
    session, capacity = open_cpu(save_tiny(family, tmp_path), WarmupPlan(max_rows=ROWS, max_row_tokens=32), dtype="float32")
    assert path_of(session) == "by row" and [group.kind for group in capacity.groups] == [CacheKind.FULL]
    check_rows_alone(session, capacity, ROWS, first_chunked=7)
    session.close()


def test_rows_share_a_prefix(tmp_path: Path) -> None:
    """A request whose first block was computed for another one makes the tokens that it makes from scratch."""
    session, capacity = open_cpu(save_tiny(FAMILIES[0], tmp_path), dtype="float32")
    check_shared_prefix(session, capacity)
    session.close()


def test_a_window_that_masks_do_not_know_keeps_the_own_cache(tmp_path: Path) -> None:
    """Moshi's cache drops positions that its masks still show, so that its tokens depend on how a prompt is cut: it gets no chunks."""
    session, _ = open_cpu(save_tiny("moshi", tmp_path), dtype="float32")
    assert path_of(session) == "own cache"
    session.close()


@pytest.mark.skipif(not TRANSFORMERS_5, reason="the generate of transformers 4 fails for this type")
def test_a_model_that_leaves_out_what_its_cache_has(tmp_path: Path) -> None:
    """CPM-Ant gets all tokens of a row in each step beside its cache, as from `generate`: without it, a token's logits change once others
    follow it."""
    session, capacity = open_cpu(save_tiny("cpmant", tmp_path), dtype="float32")
    (attention,) = (kernel for kernel in session.capabilities().kernels if kernel.part == "attention")
    made = ragged_schedule(session, capacity)
    assert attention.name == "the model's own, row by row" and path_of(session) == "own cache"
    assert all(made[id] == expected[: len(made[id])] for id, expected in enumerate(expected_tokens(tmp_path), 1))
    session.close()


@pytest.mark.parametrize("family", ["xlm", "xlnet"])
def test_a_model_that_fills_in_a_token_is_refused(family: str, tmp_path: Path) -> None:
    """The error says what such a model does otherwise."""
    with pytest.raises(InvalidModel, match=f"'{family}' predicts at a token of its own after the text"):
        open_cpu(save_tiny(family, tmp_path), dtype="float32")


class Block(nn.Module):
    """A layer that mixes tokens between two that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.mix = nn.Conv1d(8, 8, 2, padding=1)
        self.calls: list[int] = []

    def forward(self, values: Tensor) -> Tensor:
        """values [1, tokens, 4] → the same shape; each token sees the one before it."""
        mixed = self.mix(self.up(values).transpose(1, 2))[..., : values.shape[1]]
        out: Tensor = self.down(mixed.transpose(1, 2))
        return out


@pytest.fixture
def block() -> Block:
    """Random weights, in a model that mixes tokens."""
    torch.manual_seed(0)
    return Block().requires_grad_(False)


def test_only_modules_that_keep_tokens_apart_are_token_wise(block: Block) -> None:
    """A convolution over tokens, and what contains it, is not; layers that compute token by token are, in call order."""
    assert token_wise_modules(block, lambda: block(torch.randn(1, 5, 4)), int) == [block.up, block.down]


def test_rows_meet_at_token_wise_modules(block: Block) -> None:
    """Each such module runs once for all rows, and every row gets what it gets alone."""
    rows, counts = [torch.randn(1, tokens, 4) for tokens in (1, 3, 2)], list[int]()
    alone = [block(row) for row in rows]
    plain = block.up.forward

    def counted(input: Tensor) -> Tensor:
        counts.append(input.shape[1])
        return plain(input)

    block.up.forward = counted  # type: ignore[method-assign]
    lockstep = Lockstep([block.up, block.down])
    together = lockstep.run([lambda row=row: block(row) for row in rows])  # type: ignore[misc]
    assert counts == [6] and all(torch.allclose(*pair, atol=1e-6) for pair in zip(together, alone, strict=True))


def test_rows_that_take_other_ways_meet_again(block: Block) -> None:
    """A row that skips a module waits for those that don't, and all meet at the next one."""
    seen: list[int] = []
    plain = block.down.forward

    def recorded(input: Tensor) -> Tensor:
        seen.append(input.shape[1])
        return plain(input)

    block.down.forward = recorded  # type: ignore[method-assign]
    lockstep = Lockstep([block.up, block.down])
    narrow, wide = torch.randn(1, 2, 4), torch.randn(1, 1, 8)
    found = lockstep.run([lambda: block.down(wide), lambda: block.down(block.up(narrow))])
    assert seen == [3] and [each.shape[1] for each in found] == [1, 2]


def test_a_failing_row_ends_the_step_and_no_more(block: Block) -> None:
    """Its error reaches the caller, and the next step runs."""

    def fails() -> Tensor:
        block.up(torch.randn(1, 1, 4))
        raise ValueError("this row fails")

    lockstep, row = Lockstep([block.up, block.down]), torch.randn(1, 2, 4)
    with pytest.raises(ValueError, match="this row fails"):
        lockstep.run([fails, lambda: block(row)])
    assert torch.allclose(torch.cat(lockstep.run([lambda: block(row)] * 2)), torch.cat([block(row)] * 2), atol=1e-6)
