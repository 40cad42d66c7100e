"""The model server ("shard"): token ids on the backend's side, text on the scheduler's."""
