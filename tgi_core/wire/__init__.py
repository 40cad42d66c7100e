"""The wire between router and shard: the values that cross it, and the codec between them and protobuf messages."""
