"""Maximum lengths of prompts and answers of an encoder-decoder: separate limits, since encoder and decoder count positions separately."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from tgi_core.engine.models.build import UNLIMITED_POSITIONS

DEFAULT_POSITIONS = 512
"""Positions of each kind to reserve for models without a limit, if neither the config nor --max-total-tokens says more: the length that T5
was trained on."""


@dataclass(frozen=True, slots=True)
class PositionLimits:
    """`encoder` and `decoder` are the most positions of each, None without a limit; `usual` is what is reserved then. `pad` is the padding
    token."""

    encoder: int | None
    decoder: int | None
    usual: int
    encoder_heads: int
    pad: int | None

    @classmethod
    def of(cls, model: PreTrainedModel) -> PositionLimits:
        """From a model's config and modules."""
        config = model.config
        encoder, decoder = (_limit(getattr(config, name, None) or config, name) for name in ("encoder", "decoder"))
        usual = getattr(config, "n_positions", None)
        text = config.get_text_config(encoder=True)
        heads = getattr(text, "num_attention_heads", None) or getattr(text, "encoder_attention_heads", None) or 1
        pad = getattr(config, "pad_token_id", None)
        return cls(encoder, decoder, usual if isinstance(usual, int) and usual > 0 else DEFAULT_POSITIONS, int(heads), pad)

    @property
    def positions(self) -> int:
        """The longest row: prompt and answer."""
        return sum(limit or UNLIMITED_POSITIONS for limit in (self.encoder, self.decoder))

    def within(self, total: int | None) -> tuple[int, int]:
        """Tokens of prompts and answers to reserve for, given the maximum of both together."""
        most = UNLIMITED_POSITIONS if total is None else max(1, total - 1)

        def of(limit: int | None) -> int:
            return min(most, limit or (self.usual if total is None else most))

        return of(self.encoder), of(self.decoder)


def _limit(config: object, part: str) -> int | None:
    """The positions of one part; None if its attention only sees distances. A window of attention limits a decoder, whose rows would
    otherwise see further."""
    names = ("max_position_embeddings", f"max_{part}_position_embeddings")
    found = [value for name in names if isinstance(value := getattr(config, name, None), int) and value > 0]
    window = getattr(config, "sliding_window", None)
    if part == "decoder" and isinstance(window, int) and window > 0:
        found.append(window)
    return min(found, default=None)
