"""The text that the demo model is trained on, generated from a seed.

Every sentence comes from the tables and templates of this package; nothing is downloaded. `documents(seed)` is an
endless stream of `Document`; `all_facts()` is the finite list of taught facts that the check asks for.
"""

from demo_corpus.document import Document, Segment
from demo_corpus.facts import Fact, all_facts
from demo_corpus.mixture import documents

__all__ = ["Document", "Fact", "Segment", "all_facts", "documents"]
