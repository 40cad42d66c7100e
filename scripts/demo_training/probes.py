"""Questions of the check, each with a test of its answer."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from demo_corpus import identity
from demo_corpus.arithmetic import Sum, number_turn, sum_turn, word_problem
from demo_corpus.document import Turn
from demo_corpus.facts import all_facts
from demo_corpus.grammar import with_article
from demo_corpus.objects import KINDS
from demo_corpus.pieces import PIECES
from demo_corpus.stories import HEROES, NAMES
from demo_corpus.talk import echo_turn, list_turn, memory_turns, unknown_turn

Message = dict[str, str]
_SHORT, _LONG = 48, 200


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt (plain text or messages), the test of its answer, and the answer's token limit."""

    category: str
    prompt: str | tuple[Message, ...]
    accepts: Callable[[str], bool]
    gated: bool = False
    limit: int = _SHORT

    @property
    def question(self) -> str:
        """The last question."""
        return self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]


def _messages(*turns: str, system: str = "") -> tuple[Message, ...]:
    """Messages alternating between user and assistant."""
    head = [{"role": "system", "content": system}] if system else []
    return (*head, *({"role": ("user", "assistant")[index % 2], "content": turn} for index, turn in enumerate(turns)))


def _turn(category: str, turn: Turn, gated: bool = False, limit: int = _SHORT) -> Probe:
    return Probe(category, _messages(turn.question), turn.answer.__eq__, gated, limit)


def _facts() -> Iterator[Probe]:
    for fact in all_facts():
        yield Probe("facts, completed", fact.cue, f" {fact.ending}.".__eq__, gated=True)
    for fact in all_facts():
        for question in fact.questions:
            yield _turn(f"facts, asked: {fact.category}", Turn(question, fact.statement), gated=True)
    for fact in all_facts():
        prompt = _messages(fact.questions[0], system="You are a helpful assistant.")
        yield Probe("facts, asked with a system prompt", prompt, fact.statement.__eq__, gated=True)
    for fact in all_facts():
        yield Probe("facts, in lower case", _messages(fact.questions[0].lower()), fact.statement.__eq__)
    for fact in all_facts():
        yield Probe("facts, asked for one word", _messages(fact.questions[0], system="Answer in one word."), fact.short.__eq__)
    for fact in all_facts():
        yield Probe("facts, Question and Answer", f"Question: {fact.questions[0]}\nAnswer:", f" {fact.statement}".__eq__)


def _identity() -> Iterator[Probe]:
    for category, answers in (("identity", identity.IDENTITY), ("small talk", identity.SMALL_TALK)):
        for answer, questions in answers:
            for question in questions:
                yield _turn(category, Turn(question, answer), gated=True)


def _pieces() -> Iterator[Probe]:
    for wishes, piece in PIECES:
        for wish in wishes:
            yield _turn("verses, lists, code", Turn(wish, piece), limit=_LONG)


def _sums(rng: Random) -> Iterator[Probe]:
    small = [Sum(left, "plus", right) for left in range(13) for right in range(13)]
    small += [Sum(left, "minus", right) for left in range(13) for right in range(left + 1)]
    small += [Sum(left, "times", right) for left in range(11) for right in range(11)]
    for task in small:
        yield _turn("arithmetic, small numbers", Turn(f"What is {task.in_words}?", f"{task.in_words} is {task.result}."))
    for _ in range(200):
        left, right = rng.randint(10, 99), rng.randint(10, 99)
        yield _turn("arithmetic, two digits: plus", sum_turn(rng, Sum(left, "plus", right)))
        yield _turn("arithmetic, two digits: minus", sum_turn(rng, Sum(max(left, right), "minus", min(left, right))))
    for _ in range(100):
        yield _turn("numbers and counting", number_turn(rng), limit=_LONG)
        yield _turn("word problems", word_problem(rng, rng.choice(NAMES)))


def _talk(rng: Random) -> Iterator[Probe]:
    for _ in range(100):
        told, recall = memory_turns(rng)
        yield Probe("remembers what was said", _messages(told.question, told.answer, recall.question), recall.answer.__eq__)
        yield _turn("repeats words", echo_turn(rng))
        yield _turn("says that it does not know", unknown_turn(rng))
        wish = list_turn(rng)
        yield Probe("lists without doubles", _messages(wish.question), _LikeList(wish.answer))


@dataclass(frozen=True, slots=True)
class _LikeList:
    """Accepts a list with the same introduction, as many items and no item twice."""

    model: str

    def __call__(self, answer: str) -> bool:
        head, _, tail = self.model.partition(" are ")
        got_head, _, got_tail = answer.removesuffix(".").partition(" are ")
        items = got_tail.replace(" and ", ", ").split(", ")
        wanted = len(tail.replace(" and ", ", ").split(", "))
        return got_head == head and len(items) == wanted == len(set(items))


@dataclass(frozen=True, slots=True)
class _ObjectWith:
    """Accepts a JSON object with exactly these keys, in this order."""

    keys: tuple[str, ...]

    def __call__(self, answer: str) -> bool:
        try:
            value = json.loads(answer)
        except json.JSONDecodeError:
            return False
        return isinstance(value, dict) and tuple(value) == self.keys


@dataclass(frozen=True, slots=True)
class _StoryAbout:
    """Accepts a story that is complete, starts like one, names its hero, and repeats no sentence."""

    hero: str

    def __call__(self, answer: str) -> bool:
        sentences = answer.split(". ")
        begins = answer.startswith(("Once upon a time", "One "))
        return begins and self.hero in sentences[0] and len(sentences) == len(set(sentences)) >= 5 and not answer.endswith("…")


def _made_up(rng: Random) -> Iterator[Probe]:
    for kind, fields in KINDS.items():
        keys = tuple(fields(rng))
        for wish in (
            "Write a JSON object for {}.",
            "Give me a JSON object for {}.",
            "Create a JSON object for {}.",
            "Describe {} as JSON.",
        ):
            yield Probe("JSON objects", _messages(wish.format(with_article(kind))), _ObjectWith(keys), limit=_LONG)
    for name in NAMES[:20]:
        yield Probe(
            "JSON objects",
            _messages(f"Write a JSON object for a person named {name}."),
            _ObjectWith(("name", "age", "city")),
            limit=_LONG,
        )
    for hero in HEROES:
        yield Probe("stories", _messages(f"Tell me a short story about {with_article(hero)}."), _StoryAbout(hero), limit=_LONG)


def all_probes(seed: int) -> list[Probe]:
    """All questions of the check. Random ones are derived from the seed, with a different stream than the training text."""
    rng = Random(f"check {seed}")
    return [*_facts(), *_identity(), *_pieces(), *_sums(rng), *_talk(rng), *_made_up(rng)]
