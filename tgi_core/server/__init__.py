"""The model server ("shard"): exchanges token ids with the backend and text with the scheduler."""
