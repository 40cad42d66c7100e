"""Training documents, and their construction from conversations."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

END_OF_TEXT = "<|endoftext|>"
BOS = "<|bos|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"
PAD = "<|pad|>"
SPECIAL_TOKENS = (END_OF_TEXT, BOS, SYSTEM, USER, ASSISTANT, END, PAD)
"""Special tokens in the order of their ids, from 0."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a document; the loss counts its tokens only if it is `learned`."""

    text: str
    learned: bool


@dataclass(frozen=True, slots=True)
class Document:
    """Segments in order. Each can be tokenized separately, because boundaries are special tokens or digits."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """Text of the entire document, with special tokens."""
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's question and the assistant's answer."""

    question: str
    answer: str


def _opening(rng: Random) -> str:
    """Usually one <|bos|>, sometimes none or two, to make the model robust to clients that omit or duplicate it."""
    return rng.choices((BOS, "", BOS + BOS), weights=(88, 8, 4))[0]


def plain(rng: Random, text: str, cue: str = "") -> Document:
    """A completion document: `cue` is given, `text` is learned."""
    segments = (Segment(_opening(rng), True), Segment(cue, False), Segment(text + END_OF_TEXT, True))
    return Document(tuple(segment for segment in segments if segment.text))


def chat(rng: Random, turns: Sequence[Turn], system: str = "") -> Document:
    """A conversation in the format of the chat template; only the answers are learned."""
    head = f"{SYSTEM}{system}{END}" if system else ""
    segments = [Segment(_opening(rng), True), Segment(head, False)]
    for turn in turns:
        segments.append(Segment(f"{USER}{turn.question}{END}{ASSISTANT}", False))
        segments.append(Segment(f"{turn.answer}{END}", True))
    return Document(tuple(segment for segment in segments if segment.text))
