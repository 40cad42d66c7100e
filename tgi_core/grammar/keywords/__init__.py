"""Keywords of JSON schema that llguidance lacks: rewritten into ones that it has, or left to a check of the response."""

from tgi_core.grammar.keywords.rewriting import Rewritten, rewrite

__all__ = ["Rewritten", "rewrite"]
