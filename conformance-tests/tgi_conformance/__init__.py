"""The laws of the contract between tgi-core and a hardware backend, as clauses that a backend passes or fails.

`tgi-conformance run --backend NAME` on a command line, or in a backend's own tests:

    from tgi_conformance import conformance_tests

    test_conformance = conformance_tests("NAME")
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tgi_conformance.pytest_plugin import conformance_tests as conformance_tests

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `conformance_tests` on first use, so that the rest of the suite does not need pytest."""
    if name != "conformance_tests":
        raise AttributeError(name)
    from tgi_conformance.pytest_plugin import conformance_tests

    return conformance_tests
