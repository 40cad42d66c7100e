"""The laws of the backend contract as clauses: an id, a sentence, and a check that a backend passes or fails."""

from tgi_conformance.clauses import CLAUSES
from tgi_conformance.subject import Clause, Row, Subject

__all__ = ["CLAUSES", "Clause", "Row", "Subject"]
