"""The messages of `generate.v3`; see generate.proto."""
