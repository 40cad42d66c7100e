"""Training text of the demo model, generated from a seed.

All sentences are made from this package's tables and templates; nothing is downloaded. `documents(seed)` is an endless stream of
`Document`; `all_facts()` is the finite list of taught facts that the check covers.
"""

from demo_corpus.document import Document, Segment
from demo_corpus.facts import Fact, all_facts
from demo_corpus.mixture import documents

__all__ = ["Document", "Fact", "Segment", "all_facts", "documents"]
