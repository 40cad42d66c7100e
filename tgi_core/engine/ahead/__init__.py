"""Running one step ahead: a step is enqueued before the previous one is read, and decode steps are replayed as graphs."""
