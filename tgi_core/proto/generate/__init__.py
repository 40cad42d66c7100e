"""Messages of `generate.v2` and `generate.v3`, one package each."""
