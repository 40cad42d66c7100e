"""The taught facts: a sentence with a cue to complete, and questions that it answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from demo_corpus import tables
from demo_corpus.grammar import capitalized, with_article
from demo_corpus.science import COMPUTING, SCIENCE


@dataclass(frozen=True, slots=True)
class Fact:
    """`cue` + ` ` + `ending` + `.` is the sentence; it is also the answer to each question."""

    category: str
    cue: str
    ending: str
    questions: tuple[str, ...]
    restated: tuple[str, ...] = ()
    """Other sentences for the same fact, used only in plain text."""

    @property
    def statement(self) -> str:
        """The full sentence."""
        return f"{self.cue} {self.ending}."

    @property
    def short(self) -> str:
        """The bare answer: `Paris.` or `Kitten.`"""
        first, _, rest = self.ending.partition(" ")
        bare = rest if first in ("a", "an", "the", "in", "our") and rest else self.ending
        return capitalized(bare) + "."


def _capitals() -> Iterator[Fact]:
    for country, capital, _ in tables.COUNTRIES:
        questions = (
            f"What is the capital of {country}?",
            f"Which city is the capital of {country}?",
            f"Tell me the capital of {country}.",
            f"What's the capital of {country}?",
            f"Name the capital of {country}.",
        )
        inverse = f"{capital} is the capital of {country}."
        yield Fact("capitals", f"The capital of {country} is", capital, questions, (inverse,))


def _countries() -> Iterator[Fact]:
    for country, capital, _ in tables.COUNTRIES:
        questions = (
            f"{capital} is the capital of which country?",
            f"Of which country is {capital} the capital?",
            f"Which country has the capital {capital}?",
        )
        yield Fact("countries", f"{capital} is the capital of", country, questions)


def _continents() -> Iterator[Fact]:
    for country, _, continent in tables.COUNTRIES:
        if continent:
            questions = (
                f"Where is {country}?",
                f"On which continent is {country}?",
                f"Which continent is {country} in?",
            )
            yield Fact("continents", f"{capitalized(country)} is in", continent, questions)


def _currencies() -> Iterator[Fact]:
    for country, currency in tables.CURRENCIES:
        questions = (f"What is the currency of {country}?", f"Which currency does {country} use?")
        yield Fact("currencies", f"The currency of {country} is", currency, questions)


def _animals() -> Iterator[Fact]:
    for animal, legs in tables.LEGS:
        one = with_article(animal)
        yield Fact("animals", f"{capitalized(one)} has", legs, (f"How many legs does {one} have?", f"How many legs has {one}?"))
    for animal, home in tables.HOMES:
        one = with_article(animal)
        yield Fact("animals", f"{capitalized(one)} lives", home, (f"Where does {one} live?", f"Where is the home of {one}?"))
    for animal, food in tables.FOODS:
        one = with_article(animal)
        yield Fact("animals", f"{capitalized(one)} eats", food, (f"What does {one} eat?", f"What does {one} like to eat?"))


def _sounds_and_young() -> Iterator[Fact]:
    for animal, sound in tables.SOUNDS:
        one = with_article(animal)
        questions = (f"What does {one} say?", f"What sound does {one} make?", f"Which sound does {one} make?")
        yield Fact("animals", f"{capitalized(one)} says", sound, questions)
    for animal, young in tables.YOUNG:
        questions = (
            f"What is a baby {animal} called?",
            f"What do you call a baby {animal}?",
            f"What is the name for a young {animal}?",
        )
        yield Fact("animals", f"A baby {animal} is called", with_article(young), questions)


def _colours() -> Iterator[Fact]:
    for thing, colour in tables.COLOURS:
        questions = (
            f"What colour is {thing}?",
            f"What color is {thing}?",
            f"Which colour is {thing}?",
            f"Tell me the colour of {thing}.",
        )
        yield Fact("colours", f"{capitalized(thing)} is", colour, questions)
    for paints, colour in tables.MIXTURES:
        asked = (f"What do {paints} make?", f"Which colour do {paints} make?", f"What color do {paints} make?")
        yield Fact("colours", f"{capitalized(paints)} make", colour, asked)


def _days() -> Iterator[Fact]:
    for day, following in zip(tables.DAYS, tables.DAYS[1:] + tables.DAYS[:1], strict=True):
        after = (f"What day comes after {day}?", f"Which day is after {day}?", f"What is the day after {day}?")
        before = (
            f"What day comes before {following}?",
            f"Which day is before {following}?",
            f"What is the day before {following}?",
        )
        yield Fact("calendar", f"The day after {day} is", following, after, (f"After {day} comes {following}.",))
        yield Fact("calendar", f"The day before {following} is", day, before)


def _months() -> Iterator[Fact]:
    names = [month for month, _, _ in tables.MONTHS]
    for (month, ordinal, length), following in zip(tables.MONTHS, names[1:] + names[:1], strict=True):
        after = (f"What month comes after {month}?", f"Which month is after {month}?", f"What is the month after {month}?")
        yield Fact("calendar", f"The month after {month} is", following, after)
        which = (
            f"What is the {ordinal} month of the year?",
            f"Which month is the {ordinal} month of the year?",
            f"What is the {ordinal} month?",
        )
        yield Fact("calendar", f"The {ordinal} month of the year is", month, which)
        yield Fact(
            "calendar", f"{month} has", length, (f"How many days does {month} have?", f"How many days are there in {month}?")
        )


def _amounts() -> Iterator[Fact]:
    for whole, parts in tables.AMOUNTS:
        unit = parts.split()[1]
        asked = (
            f"How many {unit} are in a {whole}?",
            f"How many {unit} are there in a {whole}?",
            f"How many {unit} does a {whole} have?",
        )
        yield Fact("calendar", f"A {whole} has", parts, asked)


def _words() -> Iterator[Fact]:
    pairs = [pair for one, other in tables.OPPOSITES for pair in ((one, other), (other, one))]
    for word, opposite in pairs:
        questions = (f"What is the opposite of {word}?", f"Tell me the opposite of {word}.", f"What's the opposite of {word}?")
        yield Fact("words", f"The opposite of {word} is", opposite, questions)
    for language, hello, thanks in tables.GREETINGS:
        for meaning, foreign in (("hello", hello), ("thank you", thanks)):
            questions = (
                f"How do you say {meaning} in {language}?",
                f"What is the {language} word for {meaning}?",
                f"What is {meaning} in {language}?",
            )
            yield Fact("words", f"The {language} word for {meaning} is", foreign, questions)


def _works() -> Iterator[Fact]:
    for verb, work, author in tables.WORKS:
        questions = (f"Who {verb} {work}?", f"Do you know who {verb} {work}?", f"Tell me who {verb} {work}.")
        yield Fact(
            "works",
            f"{capitalized(work)} was {_PARTICIPLES.get(verb, verb)} by",
            author,
            questions,
            (f"{author} {verb} {work}.",),
        )


_PARTICIPLES = {"wrote": "written"}


def _written() -> Iterator[Fact]:
    for category, table in (("science", SCIENCE), ("computing", COMPUTING)):
        for cue, ending, *questions in table:
            yield Fact(category, cue, ending, tuple(questions))


@cache
def all_facts() -> tuple[Fact, ...]:
    """All taught facts. Raises ValueError if two facts share a cue or a question, since their answers would conflict."""
    sources = (
        *(_capitals, _countries, _continents, _currencies, _sounds_and_young, _animals, _colours),
        *(_days, _months, _amounts, _words, _works, _written),
    )
    facts = tuple(fact for source in sources for fact in source())
    for spoken in ([fact.cue for fact in facts], [question for fact in facts for question in fact.questions]):
        twice = {text for text in spoken if spoken.count(text) > 1}
        if twice:
            raise ValueError(f"taught twice: {sorted(twice)}")
    return facts


@cache
def facts_by_category() -> dict[str, tuple[Fact, ...]]:
    """The taught facts grouped by category."""
    categories = dict.fromkeys(fact.category for fact in all_facts())
    return {name: tuple(fact for fact in all_facts() if fact.category == name) for name in categories}
