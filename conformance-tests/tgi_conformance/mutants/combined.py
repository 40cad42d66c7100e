"""Defects that need two features together, or a history: operators of generated mutants under chosen conditions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from tgi_conformance.mutants.base import Mutant, add
from tgi_core.backend import OpenOptions

if TYPE_CHECKING:
    from tgi_conformance.generated import Generated


def _combined(
    name: str,
    origin: str,
    killed_by: str,
    operator: str,
    choice: Any = None,
    *,
    uses: str = "",
    after: str = "",
    times: int = 0,
    newest: str = "",
    block_size: int = 0,
    last: bool = False,
    long: int = 0,
) -> None:
    """Register a mutant that is wrong for rows that use all the features in `uses`.

    It can be limited to after the event `after` has happened `times` times in the session, to right after the event `newest`, to
    one block size, to the `last` position of the longest row, and to positions from `long` on.
    """

    @cache
    def made() -> Generated:
        from tgi_conformance.generated import Generated
        from tgi_conformance.generated.conditions import FEATURES, condition
        from tgi_conformance.generated.operators import registered

        tests: list[Callable[[Any], bool]] = [FEATURES[feature][1] for feature in uses.split()]
        wrong = condition(
            name,
            "",
            lambda moment, position: (
                moment.shape.past.get(after, 0) >= times
                and newest in ("", moment.shape.newest)
                and all(test(moment.request) for test in tests)
                and block_size in (0, moment.shape.block_size)
                and position >= long
                and (not last or position == moment.shape.max_row_tokens - 1)
            ),
        )
        return Generated(name, registered()[operator], choice, wrong)

    def open_session(options: OpenOptions) -> object:
        return made().open(options)

    add(Mutant(name, origin, open_session, (killed_by,)))


_combined(
    "repetition-forgets-when-masked",
    "The masked path of a sampler is a separate kernel, which never receives the repetition penalty.",
    "pairs.drawn",
    *("field-ignored", "repetition_penalty"),
    uses="repetition_penalty masked",
)
_combined(
    "temperature-forgotten-when-masked",
    "The masked path of a sampler draws from all allowed tokens.",
    "formula.crossed",
    *("field-ignored", "temperature"),
    uses="temperature masked",
)
_combined(
    "top-missing-when-continued",
    "Top tokens are looked up by the number of generated tokens, which is above zero from the start in a continued row.",
    "mates.crossed",
    *("top-wrong", "missing"),
    uses="continued",
)
_combined(
    "mask-ignored-behind-prefix",
    "Rows behind a cached prefix take a shorter path through prefill, which ignores masks.",
    "masks.crossed",
    "mask-ignored",
    uses="masked prefix",
)
_combined(
    "adapter-lost-in-chunks",
    "A prompt in chunks runs without its adapter.",
    "lora.crossed",
    *("adapter-ignored", "none"),
    uses="adapter chunks",
)
_combined(
    "seed-lost-in-chunks",
    "A row's sampling parameters are packed at prefill, without the seed if the prompt comes in chunks.",
    "chunks.crossed",
    *("field-ignored", "seed"),
    uses="chunks sampled",
)
_combined(
    "draw-counts-from-prefix",
    "A row behind a prefix draws with positions counted from the end of the prefix.",
    "prefix.crossed",
    *("draw-one-off", "cached"),
    uses="prefix sampled",
)
_combined(
    "continued-adapter-ignored",
    "A continued request is queued again without its adapter.",
    "continue.crossed",
    *("adapter-ignored", "none"),
    uses="continued adapter",
)

_PASTS = (
    ("merge", "mates.after-merges", "A buffer of merged rows is full after a number of merges."),
    ("join", "mixing.after-joins", "Slots for rows that join are never given back."),
    ("removal", "drop.after-removals", "Free places are kept in a ring of eight."),
    ("clear", "clear.after-clears", "A counter of cleared batches wraps."),
    ("clear of everything", "clear.after-everything", "The state after a reset differs from that of a fresh session."),
    ("refusal", "refusal.after-refusals", "Each refusal leaves something behind."),
    ("preemption", "continue.after-preemptions", "Continued requests are numbered, and the number is used as an index."),
    ("pause", "growth.after-pauses", "Rows that pause leave holes, which add up."),
    ("launch ahead", "order.after-ahead", "Events of steps launched ahead come from a small pool."),
)
for _event, _clause, _why in _PASTS:
    _combined(f"wrong-after-{_event.replace(' ', '-')}", _why, _clause, "wrong-logits", after=_event, times=8)
_combined(
    "wrong-after-failed-steps",
    "After a second failed step, the buffers of the first are still in use.",
    "faults.after-failures",
    "wrong-logits",
    after="failed step",
    times=2,
)
_combined(
    "wrong-with-large-blocks",
    "A kernel for large blocks that was never run: the vendor's own tests use the default size.",
    "growth.block-sizes",
    "wrong-logits",
    uses="masked",
    block_size=64,
)
_combined(
    "mask-buffers-kept",
    "One buffer is kept for each step with a masked row.",
    "leaks.everyone",
    *("counters-grow", "memory"),
    uses="masked",
)
_combined(
    "last-position-unseeded",
    "The last position of the longest row has no entry in the table of seeds.",
    "growth.last-position",
    *("field-ignored", "seed"),
    uses="sampled",
    last=True,
)
_combined(
    "mask-lost-in-long-rows",
    "Masks of long rows are filled by a separate kernel, which does nothing.",
    "growth.long-company",
    "mask-ignored",
    uses="masked",
    long=200,
)
_combined(
    "bias-lost-in-masked-chunks",
    "Biases of a prompt in chunks are kept with its mask, which an adapter's row looks up elsewhere.",
    "pairs.drawn",
    *("field-ignored", "logit_bias"),
    uses="masked chunks adapter",
)
_combined(
    "draw-moves-right-after-refusals",
    "A refused call has advanced the position from which continued rows draw.",
    "machine.traffic",
    *("draw-one-off", "before"),
    uses="continued sampled",
    newest="refusal",
)
_combined(
    "seed-lost-right-after-failed-steps",
    "The table of seeds is built anew by the first step after a failed one, and only read from the second.",
    "faults.after-failures",
    *("field-ignored", "seed"),
    uses="sampled",
    newest="failed step",
)
_combined(
    "first-sampling-when-long",
    "A prompt that is too long for the usual kernel starts in another one, which reads the first row's sampling parameters.",
    "growth.long-company",
    *("request-of-mate", "sampling"),
    long=511,
)
_combined(
    "handle-survives-behind-prefix",
    "Rows behind a prefix are found by their blocks, to which a used handle still leads.",
    "prefix.crossed",
    "handle-survives",
    uses="prefix",
)
_combined(
    "handle-survives-a-clear",
    "A step right after a clear reuses the entry of the cleared batch, and does not retire the handle that it replaces.",
    "clear.after-clears",
    "handle-survives",
    newest="clear",
)
