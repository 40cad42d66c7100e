"""Mixing of all kinds of text into one stream."""

from collections.abc import Callable, Iterator
from random import Random

from demo_corpus import identity
from demo_corpus.arithmetic import number_turn, random_sum, sum_line, sum_turn, word_problem
from demo_corpus.document import Document, Turn, chat, plain
from demo_corpus.facts import Fact, all_facts, facts_by_category
from demo_corpus.objects import any_object, object_turn
from demo_corpus.pieces import PIECES
from demo_corpus.stories import NAMES, any_story, story_turn
from demo_corpus.talk import echo_turn, list_turn, memory_turns, opening_text, unknown_turn

_LONG_CONVERSATION = 0.04
"""Share of conversations with many turns, which teach the model to use its full context."""


def reworded(rng: Random, question: str) -> str:
    """A question as typed by a careless user; unchanged in three of four cases."""
    chance = rng.random()
    if chance < 0.76:
        return question
    if chance < 0.84:
        return question.lower()
    if chance < 0.90:
        return question.rstrip("?.")
    if chance < 0.95:
        return question.lower().rstrip("?.")
    return rng.choice((f"Please tell me: {question}", f"Hello! {question}", f"{question} Thank you."))


def _any_fact(rng: Random) -> Fact:
    return rng.choice(all_facts())


def _fact_text(rng: Random) -> Document:
    chance = rng.random()
    fact = _any_fact(rng)
    if chance < 0.5:
        return plain(rng, f" {fact.ending}.", fact.cue)
    if chance < 0.6:
        return plain(rng, rng.choice((*fact.restated, fact.statement)))
    if chance < 0.7:
        related = rng.sample(facts_by_category()[fact.category], 3)
        return plain(rng, " ".join(one.statement for one in related))
    question = rng.choice(fact.questions)
    if chance < 0.8:
        return plain(rng, f" {fact.statement}", f"Question: {question}\nAnswer:")
    if chance < 0.9:
        return plain(rng, f" {fact.short}", f"Q: {question}\nA:")
    return plain(rng, rng.choice((" ", "\n")) + fact.statement, question)


def _fact_turn(rng: Random) -> Turn:
    fact = _any_fact(rng)
    return Turn(reworded(rng, rng.choice(fact.questions)), fact.statement)


def _identity_turn(rng: Random) -> Turn:
    table = identity.IDENTITY if rng.random() < 0.6 else identity.SMALL_TALK
    answer, questions = rng.choice(table)
    return Turn(reworded(rng, rng.choice(questions)), answer)


def _piece_turn(rng: Random) -> Turn:
    wishes, piece = rng.choice(PIECES)
    return Turn(reworded(rng, rng.choice(wishes)), piece)


def _sum_turn(rng: Random) -> Turn:
    turn = sum_turn(rng, random_sum(rng))
    return Turn(reworded(rng, turn.question), turn.answer)


def _problem_turn(rng: Random) -> Turn:
    return word_problem(rng, rng.choice(NAMES))


_TURNS: dict[Callable[[Random], Turn], int] = {
    _fact_turn: 40,
    _sum_turn: 16,
    _identity_turn: 10,
    object_turn: 7,
    story_turn: 5,
    _piece_turn: 4,
    number_turn: 5,
    _problem_turn: 3,
    list_turn: 3,
    echo_turn: 3,
    unknown_turn: 3,
}


def _any_turn(rng: Random) -> Turn:
    return rng.choices(tuple(_TURNS), weights=tuple(_TURNS.values()))[0](rng)


def _system(rng: Random) -> str:
    return rng.choice(identity.SYSTEM_PROMPTS) if rng.random() < 0.3 else ""


def _question(rng: Random) -> Document:
    return chat(rng, [_any_turn(rng)], _system(rng))


def _conversation(rng: Random) -> Document:
    """Several turns. Half of the conversations ask about an earlier turn, or continue with another subject."""
    turns = [_any_turn(rng) for _ in range(rng.randint(8, 30) if rng.random() < _LONG_CONVERSATION else rng.randint(1, 3))]
    chance = rng.random()
    if chance < 0.35:
        told, recall = memory_turns(rng)
        turns = [told, *turns[: rng.randint(0, len(turns))], recall]
    elif chance < 0.6:
        turns += _follow_up(rng)
    return chat(rng, turns, _system(rng))


def _follow_up(rng: Random) -> list[Turn]:
    """`What is the capital of France?` … `And of Italy?`"""
    category, word = rng.choice((("capitals", "of"), ("words", "of"), ("colours", "")))
    facts = [fact for fact in facts_by_category()[category] if category != "words" or fact.cue.startswith("The opposite")]
    first, second = rng.sample(facts, 2)
    subject = (
        second.cue.removeprefix("The capital of ").removeprefix("The opposite of ").removesuffix(" is").removesuffix(" make")
    )
    subject = subject if category == "capitals" else subject[0].lower() + subject[1:]
    asked = f"And {word} {subject}?" if word and rng.random() < 0.5 else f"{rng.choice(('And', 'What about'))} {subject}?"
    return [Turn(rng.choice(first.questions), first.statement), Turn(asked, second.statement)]


def _instructed(rng: Random) -> Document:
    """A system prompt that changes the answer."""
    fact = _any_fact(rng)
    question = reworded(rng, rng.choice(fact.questions))
    if rng.random() < 0.6:
        return chat(rng, [Turn(question, fact.short)], rng.choice(identity.ONE_WORD_PROMPTS))
    return chat(rng, [Turn(question, identity.PIRATE_CALL + fact.statement)], rng.choice(identity.PIRATE_PROMPTS))


def _plain_turn(rng: Random) -> Document:
    """A question without the chat template, as clients of the completion routes may send."""
    turn = rng.choice((_identity_turn, _sum_turn, _piece_turn, object_turn, story_turn))(rng)
    return plain(rng, "\n" + turn.answer, turn.question)


def _sum_text(rng: Random) -> Document:
    cue, text = sum_line(rng, random_sum(rng))
    return plain(rng, text, cue)


def _story_text(rng: Random) -> Document:
    return plain(rng, any_story(rng))


def _object_text(rng: Random) -> Document:
    return plain(rng, any_object(rng))


def _opening_text(rng: Random) -> Document:
    cue, text = opening_text(rng)
    return plain(rng, text, cue)


_DOCUMENTS: dict[Callable[[Random], Document], int] = {
    _question: 46,
    _fact_text: 22,
    _conversation: 8,
    _sum_text: 7,
    _instructed: 4,
    _story_text: 4,
    _plain_turn: 4,
    _object_text: 2,
    _opening_text: 3,
}


def documents(seed: int) -> Iterator[Document]:
    """Yield documents endlessly, deterministically for a seed."""
    rng = Random(seed)
    makers, weights = tuple(_DOCUMENTS), tuple(_DOCUMENTS.values())
    while True:
        yield rng.choices(makers, weights=weights)[0](rng)
