"""Several shards behind one router."""
