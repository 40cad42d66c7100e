"""The mask's place in the published sampling formula."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tgi_core.backend import Sampling
from tgi_core.backend.sampling import distribution, penalize

logits = st.dictionaries(st.integers(0, 50), st.floats(-8, 8), min_size=1, max_size=20)


@given(logits, st.data())
def test_a_mask_acts_between_penalties_and_temperature(values: dict[int, float], data: st.DataObject) -> None:
    """Masking is the same as a model that had only those tokens; what the mask forbids takes no room in top-k or top-p."""
    allowed = data.draw(st.sets(st.sampled_from(sorted(values)), min_size=1))
    how = Sampling(True, 0.7, top_k=3, top_p=0.9, repetition_penalty=1.5, frequency_penalty=0.3)
    tokens = [1, 2, 3, 3]
    masked = {token: value for token, value in values.items() if token in allowed}
    assert distribution(values, how, tokens, 1, allowed) == distribution(masked, how, tokens, 1)
    kept = distribution(values, Sampling(repetition_penalty=1.5), tokens, 1, allowed)
    best = penalize(masked, Sampling(repetition_penalty=1.5), tokens, 1)
    assert kept.keys() == allowed and math.isclose(max(kept.values()), kept[max(best, key=lambda token: best[token])])
