"""The vendor kit: a backend package that works, and the parts of tgi-core that it is made of.

`tgi-conformance new-backend NAME` writes a copy of `template` under the vendor's name (`kit.writing.new_backend`). What the copy imports,
each with its own docstring:

* `tgi_core.backend.batch_tracker.BatchTracker`: the bookkeeping of a session. It checks a verb completely, changes nothing if
  it raises, and returns the inputs of a step; a `RowInput` is one row's part of it.
* `tgi_core.backend.drawing.drawn`: a row's next token from its logits, by the published formula, as the `Row` that `rows` returns.
* `tgi_core.backend.masking.allowed_by_request`: the token ids that the grammar masks of a step allow; `mask_row` for a session that
  unpacks the bits on its device (`tgi_core.backend.callbacks.MaskSource` has their layout).
* `tgi_core.backend.sampling_checks.check_sampling`: refuses sampling parameters that are out of range.
* `tgi_core.backend.sampling`: the formula itself, for a device that samples.

The hooks are in `tgi_core.backend.spec`, the values in `tgi_core.backend.types`, the errors in `tgi_core.backend.errors`. The repository's
docs/writing-a-backend.md and docs/run-ahead-without-torch.md use all of it, step by step.
"""
