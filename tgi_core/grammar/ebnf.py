"""Grammars in EBNF: Lark as llguidance reads it, or GBNF, the notation of llama.cpp, XGrammar and vLLM's examples."""

from __future__ import annotations

import re

from tgi_core.grammar.limits import MAX_BYTES, MAX_RULES, check_text
from tgi_core.grammar.value import InvalidGrammar

_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_LARK_RULE = re.compile(r"^[ \t]*[?!]*\w[^\n]*?:", re.MULTILINE)
"""Matches every rule definition, which starts a line in Lark, and perhaps more."""
_CONTINUED = re.compile(r"\s*\n\s*\|")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)


def to_lark(text: str, max_bytes: int = MAX_BYTES) -> str:
    """Return a grammar in Lark. Raises InvalidGrammar."""
    check_text(text, max_bytes)
    lark = _converted(text) if _GBNF_RULE.search(text) else text
    if len(_LARK_RULE.findall(lark)) > MAX_RULES:
        raise InvalidGrammar(f"it has more than {MAX_RULES} rules")
    return lark


def _converted(gbnf: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark  # few grammars need it

    text = _ESCAPE.sub(_as_character, _CONTINUED.sub(" |", gbnf))
    try:
        return gbnf_to_lark(text)
    except RecursionError:
        raise InvalidGrammar("it is nested too deeply") from None
    except Exception as error:  # noqa: BLE001  the converter raises plain Exception, with a readable message
        raise InvalidGrammar(str(error)) from None


def _as_character(escape: re.Match[str]) -> str:
    r"""Write `\u0041` as `\x41` and `\u00e9` as the character: the converter drops the zeros of `\u`."""
    digits = escape.group(1) or escape.group(2)
    if not digits:
        return escape.group()
    code = int(digits, 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise InvalidGrammar(f"{escape.group()} is not a Unicode character")
    return chr(code)
