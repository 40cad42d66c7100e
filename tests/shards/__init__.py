"""The life of shards: lost, replaced, watched."""
