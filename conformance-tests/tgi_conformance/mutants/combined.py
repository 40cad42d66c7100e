"""Defects that need two features together, or a past: the operators of the generated mutants under conditions of their own choice."""

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
    block_size: int = 0,
    last: bool = False,
    long: int = 0,
) -> None:
    """Wrong for rows that use all the features in `uses`, once `after` has happened so many `times` to their session; with blocks of
    one size, at the `last` position of the longest row, or from a position on only."""

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
    "The masked path of a sampler is a kernel of its own, which was not given the repetition penalty.",
    "formula.crossed",
    *("field-ignored", "repetition_penalty"),
    uses="repetition masked",
)
_combined(
    "top-missing-when-continued",
    "Top tokens are looked up by the number of generated tokens, which a continued row has from the start.",
    "mates.crossed",
    *("top-wrong", "missing"),
    uses="continued",
)
_combined(
    "mask-ignored-behind-prefix",
    "Rows behind a cached prefix take a shorter path through prefill, which asks for no mask.",
    "masks.crossed",
    "mask-ignored",
    uses="masked prefix",
)
_combined(
    "adapter-lost-in-chunks",
    "A prompt that comes in chunks is run without its adapter.",
    "lora.crossed",
    *("adapter-ignored", "none"),
    uses="adapter chunks",
)
_combined(
    "seed-lost-in-chunks",
    "The sampler's parameters of a row are packed at prefill, and a prompt in chunks packs no seed.",
    "chunks.crossed",
    *("field-ignored", "seed"),
    uses="chunks sampled",
)
_combined(
    "draw-counts-from-prefix",
    "A row behind a prefix draws the numbers of positions counted from the end of the prefix.",
    "prefix.crossed",
    *("draw-one-off", "cached"),
    uses="prefix sampled",
)
_combined(
    "continued-adapter-ignored",
    "A request that is continued is queued again without its adapter.",
    "continue.crossed",
    *("adapter-ignored", "none"),
    uses="continued adapter",
)

_PASTS = (
    ("merge", "mates.after-merges", "A buffer of merged rows is full after so many merges."),
    ("join", "mixing.after-joins", "Slots for rows that join are never given back."),
    ("removal", "drop.after-removals", "Free places are kept in a ring of eight."),
    ("clear", "clear.after-clears", "A counter of cleared batches wraps."),
    ("clear of everything", "clear.after-everything", "The state after a reset is not that of a fresh session."),
    ("refusal", "refusal.after-refusals", "Each refusal leaves something behind."),
    ("preemption", "continue.after-preemptions", "Continued requests are numbered, and their number is an index."),
    ("pause", "growth.after-pauses", "Rows that pause leave holes, and the holes add up."),
    ("launch ahead", "order.after-ahead", "Events of steps launched ahead are taken from a small pool."),
)
for _event, _clause, _why in _PASTS:
    _combined(f"wrong-after-{_event.replace(' ', '-')}", _why, _clause, "wrong-logits", after=_event, times=8)
_combined(
    "wrong-after-failed-steps",
    "After a second failed step the buffers of the first are still in use.",
    "faults.after-failures",
    "wrong-logits",
    after="failed step",
    times=2,
)
_combined(
    "wrong-with-large-blocks",
    "A kernel for large blocks that nobody ran: the vendor's own tests use the default.",
    "growth.block-sizes",
    "wrong-logits",
    uses="masked",
    block_size=64,
)
_combined(
    "mask-buffers-kept",
    "Buffers for masks are kept, one for each step that has a masked row.",
    "leaks.everyone",
    *("counters-grow", "memory"),
    uses="masked",
)
_combined(
    "last-position-unseeded",
    "The last position of the longest row has no place in the table of seeds.",
    "growth.last-position",
    *("field-ignored", "seed"),
    uses="sampled",
    last=True,
)
_combined(
    "mask-lost-in-long-rows",
    "Masks of long rows are filled by another kernel, which fills nothing.",
    "growth.long-company",
    "mask-ignored",
    uses="masked",
    long=200,
)
