"""The static engine over XLA's compiler: opt-in, by `make test-xla`."""
