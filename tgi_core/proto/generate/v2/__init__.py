"""The messages of `generate.v2`; see generate.proto."""
