"""One step ahead, over a device that is as late as it may be, the contract is kept: with graphs and without."""

from __future__ import annotations

from tgi_conformance import conformance_tests
from tgi_conformance.golden import default_model
from tgi_conformance.target import Target

from tests.engine.ahead.late import LateKit, LateQueue
from tests.engine.tiny_models import silent
from tgi_core.backend import OpenOptions
from tgi_core.engine.open_model import open_session


def _target(name: str, graphs: str | None, eager: bool = False) -> Target:
    def open_late(options: OpenOptions) -> object:
        return open_session(options, LateKit(LateQueue(graphs=graphs, eager=eager)), silent)

    return Target(name, open_late, default_model("cpu"), device_kind="cpu")


test_replayed = conformance_tests(_target("late", None), "L2", effort=0.1)
test_not_captured = conformance_tests(_target("late-without-graphs", "switched off"), "L1", effort=0.1)
test_in_time = conformance_tests(_target("in-time", None, eager=True), "L1", effort=0.1)
