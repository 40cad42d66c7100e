"""Answers that copy much of their prompts, as models that edit code, quote documents or rewrite JSON make them, one request at a time.

The demo model is too small to copy. So a mask allows nothing but the next token of an answer that was written beforehand; steps cost what
they would cost otherwise. Drafts come from where they come from in the server: what followed the same tokens in prompt and answer.
`free` is not masked: it is sampled at a temperature at which nothing that the drafts suggest is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.speculating.stack import Answer, Run, Stack, middle, take_turns
from tgi_core.backend import MaskRow, OutputOptions, Sampling
from tgi_core.model_files import DEMO
from tgi_core.scheduler import GenerationRequest
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.types import Stopping

DRAFTS = 16
"""What pays most here: copied passages are long."""
FUNCTION = '''def {name}(path, separator=","):
    """Read the {what} of a file, one per line."""
    found = []
    with open(path) as file:
        for line in file:
            parts = line.strip().split(separator)
            if not parts or parts[0].startswith("#"):
                continue
            found.append({value})
    return found


'''
CODE = "".join(
    FUNCTION.format(name=f"read_{what}", what=what, value=value)
    for what, value in (("names", "parts[0]"), ("pairs", "(parts[0], parts[1])"), ("numbers", "float(parts[-1])"))
)
PARAGRAPHS = (
    "The lighthouse on the northern cape was built in 1851 from granite that ships brought from the other side of the bay. "
    "Its lamp stands 48 metres above the sea and was first lit with oil, later with gas, and since 1926 with electricity.",
    "Keepers lived in the two houses below the tower until 1987. They wound the clockwork that turned the lens every four "
    "hours, and wrote down wind, weather and every ship that passed in books that the museum of the town keeps today.",
    "Visitors reach the tower on foot by a path of three kilometres along the cliffs. It is open from May to September, "
    "except in storms; the stairs have 204 steps, and no more than twelve people may be on the gallery at once.",
)
RECORDS = [
    f'{{"id": {number}, "name": "{name}", "city": "{city}", "active": true, "tags": ["customer", "{city.lower()}"]}}'
    for number, (name, city) in enumerate(
        (("Ada", "London"), ("Emmy", "Erlangen"), ("Grace", "Arlington"), ("Alan", "Wilmslow"), ("Sofia", "Stockholm")), 101
    )
]
TEXTS = {
    "code edit": (
        f"{CODE}Rename separator to delimiter, and skip empty lines only.\n\n",
        CODE.replace("separator", "delimiter").replace('not parts or parts[0].startswith("#")', "not parts[0]"),
    ),
    "quotes": (
        "\n\n".join(PARAGRAPHS) + "\n\nWhen was the lighthouse built, and who looked after it? Quote the text.\n\n",
        f"The first passage says: “{PARAGRAPHS[0]}” On the keepers, the second one says: “{PARAGRAPHS[1]}” So it dates from 1851.",
    ),
    "JSON": (
        "[" + ",\n ".join(RECORDS) + "]\nDeactivate Grace and remove Alan.\n",
        "["
        + ",\n ".join(record.replace("true", "false") if "Grace" in record else record for record in RECORDS[:3] + RECORDS[4:])
        + "]",
    ),
}
"""Prompts and answers."""
FREE = "free"
_FREE_NEW = 192


class Script:
    """A mask source that allows the next token of a script."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self.answer: Answer = []
        self._made: dict[int, int] = {}
        """Number of tokens by request."""

    def fill(self, rows: tuple[MaskRow, ...]) -> bytes:
        """See `MaskSource`."""
        return b"".join(map(self._mask, rows))

    def _mask(self, row: MaskRow) -> bytes:
        self._made[row.request_id] = made = self._made.get(row.request_id, 0) + len(row.tokens)
        bits = bytearray(4 * self._words)
        token = self.answer[made] if made < len(self.answer) else 0
        bits[token // 8] |= 1 << token % 8
        return bytes(bits)


@dataclass(frozen=True, slots=True)
class Copied:
    """Tokens per second with drafts over those without, by round."""

    kind: str
    tokens: int
    steps: int
    gains: list[float]
    cpu_gains: list[float]
    """The same per second of processor time, which other work on the machine affects less."""


def measure(rounds: int, draft: int = DRAFTS) -> list[Copied]:
    """All kinds. Raises RuntimeError if drafts change a token."""
    tokenizer = Tokenizer.load(DEMO)
    scripts = Script(tokenizer.vocab_size), Script(tokenizer.vocab_size)
    plain, drafting = (Stack(DEMO, 1, 2048, most, masks=script) for most, script in zip((0, draft), scripts, strict=True))
    found = []
    for kind, (prompt, answer) in {**TEXTS, FREE: ("Once upon a time", "")}.items():
        wanted = list(tokenizer.encode(answer, add_special_tokens=False).ids)
        for script in scripts:
            script.answer = wanted
        runs: list[tuple[Run, Run]] = []
        for turn in range(-1, rounds):  # the first one is a warm-up
            asked = _request(tokenizer, prompt, len(wanted), turn)
            for stack in (plain, drafting):
                stack.begin([asked])
            take_turns(plain, drafting)
            if plain.run.answers != drafting.run.answers:
                raise RuntimeError(f"{kind}: drafts changed an answer")
            runs += [(plain.run, drafting.run)] if turn >= 0 else []
        found.append(_copied(kind, runs))
    return found


def _request(tokenizer: Tokenizer, prompt: str, scripted: int, turn: int) -> GenerationRequest:
    """A masked request if its answer is scripted, which is told by its minimum of tokens."""
    sampling = Sampling() if scripted else Sampling(do_sample=True, temperature=2.0, seed=turn + 1)
    stopping = Stopping(scripted or _FREE_NEW, ignore_eos=True)
    if scripted:
        stopping = replace(stopping, min_new_tokens=scripted)
    return GenerationRequest.of(tuple(tokenizer.encode(prompt).ids), sampling, stopping, OutputOptions(logprobs=False))


def _copied(kind: str, runs: Sequence[tuple[Run, Run]]) -> Copied:
    gains = [other.rate / one.rate for one, other in runs]
    cpu_gains = [other.tokens / other.cpu * one.cpu / one.tokens for one, other in runs]
    last = runs[-1][1]
    return Copied(kind, last.tokens, last.steps, gains, cpu_gains)


def report(found: Sequence[Copied]) -> str:
    """A line per kind."""
    lines = ["answers    tokens  steps  gain              by processor time"]
    lines += [
        f"{each.kind:9s}  {each.tokens:6d}  {each.steps:5d}  {middle(each.gains)}  {middle(each.cpu_gains)}" for each in found
    ]
    return "\n".join(lines)
