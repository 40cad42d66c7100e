"""Drafts on an asynchronous device in 16 bits, where rows round otherwise in another batch, and so do drafts."""

from __future__ import annotations

from tgi_conformance.golden import default_model

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.speculation_clauses import passed
from tests.engine.tiny_models import silent
from tgi_core.backend import Feature, OpenOptions
from tgi_core.backend.session import Session
from tgi_core.engine.open_model import open_session


def open_late(options: OpenOptions) -> object:
    """A session over a late device."""
    return open_session(options, LateKit(LateQueue()), silent)


def test_drafts_in_bfloat16() -> None:
    """Tokens are those without drafts unless two are equal up to rounding, and `/info` says that they may differ."""
    model = default_model("cpu")
    assert passed(open_late, model, only=("speculation.accept", "speculation.reject"), effort=0.1, dtype="bfloat16")
    capabilities = Session(open_late(OpenOptions(str(model), dtype="bfloat16")), "late").capabilities()
    told = next(kernel for kernel in capabilities.kernels if kernel.part == "drafts")
    assert Feature.SPECULATION in capabilities.features and told.name == "run"
    assert told.reason.startswith("in bfloat16, drafts change the last bits of logits, as batch sizes do")
