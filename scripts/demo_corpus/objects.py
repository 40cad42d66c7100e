"""Small JSON objects, and requests for them."""

import json
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from demo_corpus import tables
from demo_corpus.document import Turn
from demo_corpus.grammar import with_article
from demo_corpus.stories import NAMES

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value]"
Fields: TypeAlias = dict[str, Value]

CITIES = tuple(capital for _, capital, _ in tables.COUNTRIES if " " not in capital)[:24]
COLOUR_NAMES = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple", "pink", "brown", "grey")
FRUITS = ("apple", "banana", "cherry", "lemon", "orange", "pear", "plum", "grape", "melon", "peach")
PRODUCTS = ("lamp", "chair", "table", "book", "phone", "bag", "cup", "bike", "clock", "pen")


def _person(rng: Random) -> Fields:
    return {"name": rng.choice(NAMES), "age": rng.randint(18, 79), "city": rng.choice(CITIES)}


def _animal(rng: Random) -> Fields:
    species, sound = rng.choice(tables.SOUNDS)
    return {"name": rng.choice(NAMES), "species": species, "sound": sound}


def _book(rng: Random) -> Fields:
    _, title, author = rng.choice([row for row in tables.WORKS if row[0] == "wrote"])
    return {"title": title[0].upper() + title[1:], "author": author, "pages": rng.randint(10, 90) * 10}


def _product(rng: Random) -> Fields:
    return {"product": rng.choice(PRODUCTS), "price": rng.randint(2, 99) + 0.5, "in_stock": rng.random() < 0.5}


def _weather(rng: Random) -> Fields:
    sky = rng.choice(("sunny", "rainy", "cloudy", "windy"))
    return {"city": rng.choice(CITIES), "temperature": rng.randint(1, 35), "weather": sky}


def _country(rng: Random) -> Fields:
    country, capital, _ = rng.choice([row for row in tables.COUNTRIES if not row[0].startswith("the")])
    return {"country": country, "capital": capital}


def _car(rng: Random) -> Fields:
    return {"colour": rng.choice(COLOUR_NAMES), "doors": rng.choice((3, 5)), "year": rng.randint(1990, 2025)}


def _point(rng: Random) -> Fields:
    return {"x": rng.randint(0, 99), "y": rng.randint(0, 99)}


def _basket(rng: Random) -> Fields:
    items: list[Value] = [*rng.sample(FRUITS, 3)]
    return {"items": items, "count": 3}


KINDS: dict[str, Callable[[Random], Fields]] = {
    "person": _person,
    "animal": _animal,
    "book": _book,
    "product": _product,
    "weather report": _weather,
    "country": _country,
    "car": _car,
    "point": _point,
    "shopping basket": _basket,
}

_WISHES = (
    "Write a JSON object for {}.", "Write a JSON object for {}.", "Give me a JSON object for {}.",
    "Create a JSON object for {}.", "Write JSON for {}.", "Describe {} as JSON.",
)  # fmt: skip


def written(value: Value) -> str:
    """Format a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def any_object(rng: Random) -> str:
    """A random object, on one line or indented."""
    value = KINDS[rng.choice(tuple(KINDS))](rng)
    return json.dumps(value, ensure_ascii=False, indent=2) if rng.random() < 0.2 else written(value)


def object_turn(rng: Random) -> Turn:
    """A request for a JSON object, and the object."""
    chance = rng.random()
    if chance < 0.2:
        return _named_person(rng)
    if chance < 0.35:
        return _extraction(rng)
    if chance < 0.45:
        return _array(rng)
    kind = rng.choice(tuple(KINDS))
    return Turn(rng.choice(_WISHES).format(with_article(kind)), written(KINDS[kind](rng)))


def _named_person(rng: Random) -> Turn:
    person = _person(rng)
    wish = rng.choice(_WISHES)
    if rng.random() < 0.5:
        return Turn(wish.format(f"a person named {person['name']}"), written(person))
    told = f"{person['name']}, who is {person['age']} years old and lives in {person['city']}"
    return Turn(wish.format(told), written(person))


def _extraction(rng: Random) -> Turn:
    person = _person(rng)
    told = rng.choice((
        f"{person['name']} is {person['age']} years old and lives in {person['city']}.",
        f"My name is {person['name']}. I am {person['age']} years old and I live in {person['city']}.",
    ))  # fmt: skip
    wish = rng.choice(("Write this as JSON: {}", "Extract the person as JSON: {}", "Turn this into JSON: {}"))
    return Turn(wish.format(told), written(person))


def _array(rng: Random) -> Turn:
    things, words = rng.choice((("colours", COLOUR_NAMES), ("fruits", FRUITS), ("names", NAMES), ("cities", CITIES)))
    chosen: list[Value] = [*rng.sample(words, 3)]
    return Turn(rng.choice((f"Write a JSON list of three {things}.", f"Give me three {things} as a JSON list.")), written(chosen))
