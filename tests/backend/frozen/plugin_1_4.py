"""A plugin built against API 1.4 and in need of it: it reads `Sampling.watermark` and `watermark_gamma`, and declares the field.

The rest is the plugin of 1.3.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

from tests.backend.frozen import plugin_1_3
from tests.backend.frozen.plugin_1_2 import mix
from tests.backend.frozen.plugin_1_3 import backend_probe
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-4", "a vendor", "1.4", (1, 4), (1, 4), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_3.backend_open(options)
    return Session(older.vocab_size, older.max_positions, older.adapters)


def greenlist(previous, vocab_size, gamma):
    """The head of the vocabulary, shuffled by MT19937 with the seed 15485863 times the previous token."""
    words = [15485863 * previous % 2**32]
    for place in range(1, 624):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + place) % 2**32)
    twister, ids = random.Random(), list(range(vocab_size))
    twister.setstate((3, (*words, 624), None))
    for place in range(int(vocab_size * gamma)):
        other = place + twister.getrandbits(32) % (vocab_size - place)
        ids[place], ids[other] = ids[other], ids[place]
    return set(ids[: int(vocab_size * gamma)])


class Session(plugin_1_3.Session):
    @api.hookimpl
    def capabilities(self):
        found = super().capabilities()
        return dataclasses.replace(found, sampling=found.sampling | {api.SamplingField.WATERMARK})

    def _check(self, request):
        how = request.sampling
        if not math.isfinite(how.watermark) or abs(how.watermark) >= 3.4e38 or not 0 <= how.watermark_gamma <= 1:
            raise api.InvalidRequest("watermark out of range")
        super()._check(request)

    def _choose(self, row, state):
        """As in 1.2, with the watermark before all else."""
        how, logits = row.request.sampling, {}
        for rank in range(min(8, self.vocab_size)):
            state = mix(state)
            logits.setdefault(state % self.vocab_size, -0.5 * rank + (state >> 40) / 2**25)
        if how.watermark:
            green = greenlist(row.tokens[-1], self.vocab_size, how.watermark_gamma)
            logits = {token: value + (how.watermark if token in green else 0) for token, value in logits.items()}
        order = sorted(logits, key=lambda token: (-logits[token], token))
        if not how.do_sample:
            return order[0]
        kept = order[: how.top_k or None]
        weights = [math.exp((logits[token] - logits[order[0]]) / how.temperature) for token in kept]
        heads = itertools.accumulate(weight / sum(weights) for weight in weights)
        count = min(1 + sum(head < how.top_p for head in heads), sum(weight >= how.min_p for weight in weights))
        return random.Random(f"{how.seed} {len(row.tokens)}").choices(kept[:count], weights[:count])[0]
