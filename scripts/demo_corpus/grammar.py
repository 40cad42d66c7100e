"""English text generation: articles, capitalization, alternatives."""

import re
from collections.abc import Mapping, Sequence
from random import Random

_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def with_article(noun: str) -> str:
    """`fox` becomes `a fox`, `owl` becomes `an owl`."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def capitalized(text: str) -> str:
    """Capitalize the first letter only."""
    return text[:1].upper() + text[1:]


def expand(rng: Random, template: str, slots: Mapping[str, str]) -> str:
    """Choose one of each `[a|b|c]`, innermost first, then fill the `{slots}`."""
    while _CHOICE.search(template):
        template = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
    return template.format_map(slots)


def listed(items: Sequence[str]) -> str:
    """`["a", "b", "c"]` becomes `a, b and c`."""
    return f"{', '.join(items[:-1])} and {items[-1]}" if len(items) > 1 else items[0]
