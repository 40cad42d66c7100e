"""Whether rows of a model may run drafts: only if a step with several tokens of a row gives the same logits as steps with one."""

from __future__ import annotations

import torch
from torch import Tensor

from tgi_core.backend import Feature, Kernel, Request
from tgi_core.backend.batch_tracker import RowInput, RowState
from tgi_core.engine.comparison import MODEL_ERRORS, relative_difference
from tgi_core.engine.paged_runner import CANNOT_GO_BACK, PagedRunner
from tgi_core.engine.runner import Runner

PART = "drafts"
"""The part of a model that the verdict is about."""

_PROMPT, _STEPS, _MOST = 4, 3, 9
"""Tokens of the first step, number of one-token steps, and most tokens per step that replaces them: all fit in the smallest block."""
_ROUNDING, _COARSE = 1e-5, 0.05
"""Difference of logits, relative to their norm, up to which it is mere rounding: in float32, and in dtypes or caches of fewer bits."""


def allow_drafts(runner: Runner, exact: bool) -> Kernel:
    """Declare speculation if drafts change no token, else say why not; the same on all ranks. Frees the runner's cache.

    `exact` asks for the same bits; else logits may differ in their rounding, as they do from batch to batch.
    """
    if Feature.SPECULATION in runner.features:
        return Kernel(PART, "run")
    if not isinstance(runner, PagedRunner):
        return Kernel(PART, "none", "a row's cache is the model's own, which cannot be rolled back")
    reason = CANNOT_GO_BACK if runner.stateful else runner.drafts_refusal or _refusal(runner, exact)
    if reason:
        return Kernel(PART, "none", reason)
    runner.features |= {Feature.SPECULATION}
    return Kernel(PART, "run", "" if exact else rounding_note(runner.shape.dtype, runner.cache_dtype))


def rounding_note(dtype: torch.dtype, cache_dtype: str) -> str:
    """What rounding may change where steps with drafts need not have the same bits; empty if that is next to nothing, as in float32."""
    if dtype is torch.float32 and cache_dtype == "auto":
        return ""
    where = f"with a cache in {cache_dtype}" if dtype is torch.float32 else f"in {str(dtype).removeprefix('torch.')}"
    return f"{where}, drafts change the last bits of logits, as batch sizes do; --dtype float32 keeps tokens the same"


def _refusal(runner: PagedRunner, exact: bool) -> str:
    if exact and not runner.provider.invariant:
        return f"attention by {runner.provider.name} computes several tokens of a row in another order than one"
    allowed, reason = 0.0, ""
    if not exact:
        allowed = _COARSE if rounding_note(runner.shape.dtype, runner.cache_dtype) else _ROUNDING
    try:
        singly = _singly(runner)
        found = [_together(runner, take, beside) for take in (_STEPS, _MOST) for beside in (1, take)]
        differences = [_difference(each, singly, exact) for each in found]
    except MODEL_ERRORS as error:
        differences = [torch.inf]
        reason = f": {type(error).__name__}"
    worst = max(differences)
    if runner.agree(int(worst <= allowed)):
        return ""
    return f"logits of several tokens of a row differ from those of one at a time by {worst:.2g} of their norm{reason}"


def _difference(found: Tensor, expected: Tensor, exact: bool) -> float:
    return 0.0 if exact and torch.equal(found, expected) else max(relative_difference(found, expected), 1e-30 if exact else 0)


def _singly(runner: PagedRunner) -> Tensor:
    """Logits [steps, vocabulary] of a row alone, one token at a time."""
    row = _begun(runner, 1)
    found = [runner.run([_next(row, 1)]).last[-1].clone() for _ in range(_STEPS)]
    runner.release()
    return torch.stack(found)


def _together(runner: PagedRunner, take: int, beside: int) -> Tensor:
    """The same with `take` tokens at once, in a step with another row, `beside`."""
    row, other = _begun(runner, 1), _begun(runner, 2)
    logits = runner.run([_next(other, beside), _next(row, take)])
    found = torch.cat((logits.last[-1:], logits.drafts[1]))[:_STEPS].clone()
    runner.release()
    return found


def _begun(runner: PagedRunner, id: int) -> RowState:
    """A row that has run its prompt, in the block with its number."""
    vocab = runner.shape.vocab_size
    tokens = tuple((7 * place + id) % vocab for place in range(_PROMPT + _MOST))
    if runner.cache is None:
        runner.use_probe_cache()
    row = RowState(Request(id, tokens[:_PROMPT], _PROMPT, 0, ((id,),), 1), list(tokens), 0, ([id],))
    runner.run([_next(row, _PROMPT)])
    return row


def _next(row: RowState, take: int) -> RowInput:
    """A row's next tokens, those after the first as drafts once its prompt is complete."""
    start = row.computed
    row.computed += take
    drafts = tuple(row.tokens[start + 1 : start + take]) if start >= _PROMPT else ()
    known = RowState(row.request, row.tokens[: start + take - len(drafts)], row.computed, row.tables)
    return RowInput(known, start, take, True, drafts)
