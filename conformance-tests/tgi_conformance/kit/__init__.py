"""The vendor kit: what `tgi-conformance new-backend` will write. Empty so far."""
