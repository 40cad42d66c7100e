"""The torch toolkit that backends share: weights, models, attention, the ragged engine and the sampler. Names no device."""
