"""A plugin built against API 1.2 and in need of it: it reads `Sampling.min_p`, and declares the field.

The rest is the plugin of 1.1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

from tests.backend.frozen import plugin_1_1
from tests.backend.frozen.plugin_1_1 import backend_probe, mix
from tgi_core import backend as api

__all__ = ["backend_manifest", "backend_open", "backend_probe"]


@api.hookimpl
def backend_manifest():
    return api.Manifest("frozen-1-2", "a vendor", "1.2", (1, 2), (1, 2), "none", api.Processes.PER_RANK)


@api.hookimpl
def backend_open(options):
    older = plugin_1_1.backend_open(options)
    return Session(older.vocab_size, older.max_positions, older.adapters)


class Session(plugin_1_1.Session):
    @api.hookimpl
    def capabilities(self):
        fields = frozenset({api.SamplingField.MIN_P, api.SamplingField.SEED})
        return dataclasses.replace(super().capabilities(), sampling=fields)

    def _check(self, request):
        if not 0 <= request.sampling.min_p <= 1:
            raise api.InvalidRequest("min_p out of range")
        super()._check(request)

    def _choose(self, row, state):
        """As in 1.0, with min-p behind top-p."""
        how, logits = row.request.sampling, {}
        for rank in range(min(8, self.vocab_size)):
            state = mix(state)
            logits.setdefault(state % self.vocab_size, -0.5 * rank + (state >> 40) / 2**25)
        order = sorted(logits, key=lambda token: (-logits[token], token))
        if not how.do_sample:
            return order[0]
        kept = order[: how.top_k or None]
        weights = [math.exp((logits[token] - logits[order[0]]) / how.temperature) for token in kept]
        heads = itertools.accumulate(weight / sum(weights) for weight in weights)
        count = min(1 + sum(head < how.top_p for head in heads), sum(weight >= how.min_p for weight in weights))
        return random.Random(f"{how.seed} {len(row.tokens)}").choices(kept[:count], weights[:count])[0]
