"""Conversations that need no facts: lists, names to remember, words to repeat, and questions without a taught answer."""

from random import Random

from demo_corpus.document import Turn
from demo_corpus.grammar import capitalized, expand, listed
from demo_corpus.objects import CITIES, COLOUR_NAMES, FRUITS
from demo_corpus.pieces import OPENINGS
from demo_corpus.stories import NAMES
from demo_corpus.tables import COUNTRIES, SOUNDS, words

UNKNOWN = "I am only a small demo model, and I do not know that."

_LISTS = {
    "animals": tuple(animal for animal, _ in SOUNDS),
    "colours": COLOUR_NAMES,
    "colors": COLOUR_NAMES,
    "fruits": FRUITS,
    "cities": CITIES,
    "countries": tuple(country for country, *_ in COUNTRIES[:20]),
    "names": NAMES,
}
_NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5}

_WORDS = (
    *COLOUR_NAMES,
    *FRUITS,
    *_LISTS["animals"],
    *words("hello please water house morning window garden music paper river stone tree letter winter"),
)

_UNKNOWN_QUESTIONS = (
    "Who won the [football|tennis|chess|hockey] [game|match|final] [yesterday|last year|in 1998|in 2010]?",
    "How do I [repair|clean|sell|build] [a car|a bike|a radio|a roof|a boat|my phone]?",
    "What will the weather be [tomorrow|next week|on Sunday|tonight]?",
    "What is the weather like [today|in {city}|in {city} today]?",
    "How tall is [the Eiffel Tower|my brother|the president|that building]?",
    "What is the best [film|restaurant|song|hotel] in {city}?",
    "What did {name} [say|eat|write|buy] [yesterday|today|last night]?",
    "How many people live in {city}?",
    "What is the meaning of [life|this dream|love|that sign]?",
    "Explain [quantum physics|the theory of relativity|the stock market|inflation|philosophy].",
    "What is the phone number of {name}?",
    "How old is {name}?",
    "When was [the telephone|the first train|the old bridge|the piano] [built|invented|made]?",
    "Why is [my computer so slow|the shop closed|the train late|my coffee cold]?",
    "What time is it?",
    "What is the date today?",
)


def list_turn(rng: Random) -> Turn:
    """`Name three fruits.`"""
    things = rng.choice(tuple(_LISTS))
    number = rng.choice(tuple(_NUMBERS))
    chosen = rng.sample(_LISTS[things], _NUMBERS[number])
    wish = rng.choice((f"Name {number} {things}.", f"List {number} {things}.", f"Give me {number} {things}."))
    return Turn(wish, capitalized(f"{number} {things} are {listed(chosen)}."))


def echo_turn(rng: Random) -> Turn:
    """A request to repeat words, and the answer."""
    spoken = " ".join(rng.sample(_WORDS, rng.choice((1, 1, 2, 3, 4))))
    wish = rng.choice(("Say {}.", "Repeat after me: {}", "Repeat: {}", "Say the words {}.", "Write {}."))
    return Turn(wish.format(spoken), capitalized(spoken) + ".")


def unknown_turn(rng: Random) -> Turn:
    """A question without a taught answer; the model says that it does not know."""
    slots = {"city": rng.choice(CITIES), "name": rng.choice(NAMES)}
    return Turn(expand(rng, rng.choice(_UNKNOWN_QUESTIONS), slots), UNKNOWN)


def memory_turns(rng: Random) -> tuple[Turn, Turn]:
    """Users say something about themselves; `recall` asks about it later in the conversation."""
    name, city, colour = rng.choice(NAMES), rng.choice(CITIES), rng.choice(COLOUR_NAMES)
    kind = rng.randrange(3)
    if kind == 0:
        told = rng.choice((f"My name is {name}.", f"I am {name}.", f"Hello, my name is {name}.", f"Hi, I'm {name}."))
        return Turn(told, f"Nice to meet you, {name}!"), Turn("What is my name?", f"Your name is {name}.")
    if kind == 1:
        return Turn(f"I live in {city}.", f"{city} is a nice place to live."), Turn("Where do I live?", f"You live in {city}.")
    return Turn(f"My favourite colour is {colour}.", f"{capitalized(colour)} is a nice colour."), Turn(
        "What is my favourite colour?", f"Your favourite colour is {colour}."
    )


def opening_text(rng: Random) -> tuple[str, str]:
    """A beginning of a plain text and its continuation."""
    slots = {"city": rng.choice(CITIES), "name": rng.choice(NAMES), "age": str(rng.randint(18, 79))}
    cue, ending = rng.choice(OPENINGS)
    return expand(rng, cue, slots), expand(rng, ending, slots)
