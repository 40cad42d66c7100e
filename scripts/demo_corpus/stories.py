"""Short stories from plots with choices."""

from dataclasses import dataclass
from random import Random

from demo_corpus.document import Turn
from demo_corpus.grammar import capitalized, expand, with_article
from demo_corpus.tables import words

HEROES = words(
    "fox bear rabbit mouse cat dog owl frog duck lion hedgehog squirrel wolf elephant horse sheep goat cow pig hen "
    "monkey tiger turtle penguin dragon robot knight wizard princess king queen boy girl farmer sailor whale fish "
    "bird bee spider snake deer kangaroo giraffe panda"
)
SHE = words("Ruby Mia Anna Lily Rosa Ella Nora Clara Lucy Emma Sofia Olivia Maya Ida Greta Nina Kate Alice")
HE = words("Tom Max Leo Ben Finn Oscar Hugo Sam Jack Paul Felix Otto Adam Emil Noah Carl Tim Olivier")
NAMES = SHE + HE
_FEMALE = frozenset({"princess", "queen", "girl", "hen", "cow"})
_MALE = frozenset({"king", "boy", "knight", "wizard"})
_IRREGULAR = {
    "sheep": "sheep",
    "fish": "fish",
    "deer": "deer",
    "mouse": "mice",
    "wolf": "wolves",
    "fox": "foxes",
    "princess": "princesses",
}

_OPENING = (
    "Once upon a time there was a [small|little|young|clever|kind|shy|brave] {hero} named {name}. "
    "{name} lived [in a quiet forest|near a blue lake|in a small village|on a green hill|by the sea|at the edge of a town]. "
)
_SHORT_OPENING = "One [sunny|cold|windy|quiet] [morning|day], a [small|little|young|clever] {hero} named {name} [went for a walk|left home early|sat by the river]. "
_ENDING = (
    "[From that day on, {name} and {friend} were good friends."
    "|They laughed and walked home together."
    "|{name} was very happy and slept well that night."
    "|And so the day ended with a big smile.]"
)

PLOTS = (
    "One [day|morning], {name} [walked too far|followed a butterfly] and could not find the way home. "
    "{He} was afraid and began to cry. Then {name} met {a_friend} named {friend}. "
    '"Do not worry," said {friend}. "I know the way." '
    "Together they walked [over the hill|along the river|through the trees] until {name} saw {his} home. ",
    "One [winter|cold] day, {name} was very hungry, but there was nothing to eat. "
    "{He} knocked at the door of {a_friend} named {friend}. "
    '"Please, do you have some [bread|soup|cake] for me?" asked {name}. '
    '"Of course," said {friend}. "Come in and sit by the fire." They ate and talked all evening. ',
    "{name} wanted to learn to [sing|swim|dance|paint], but it was very hard. "
    '"I will never learn it," {he} said. {A_friend} named {friend} heard this and smiled. '
    '"Try a little every day," said {friend}. So {name} tried again and again, and after [a week|a month|one summer] {he} could do it. ',
    "One day, {name} found [a golden key|an old map|a shiny stone|a small box] under [a tree|a big stone|the snow]. "
    '"What is this?" {he} asked. {A_friend} named {friend} came to look. '
    "They searched the whole day, and in the evening they found [a chest full of gold|a secret garden|an old book of stories]. They shared it with everyone. ",
    "{name} was afraid of the dark. One night, {he} could not sleep and looked out of the window. "
    "There sat {a_friend} named {friend}. "
    '"Look up," said {friend}. "The stars are little lamps in the sky." '
    "{name} looked at the stars and was not afraid any more. ",
    "One day, a big storm came and broke the house of {a_friend} named {friend}. {friend} was very sad. "
    '"I will help you," said {name}. They carried wood and stones, and they worked for [two|three|four] days. '
    "At last the new house was ready, and it was stronger than the old one. ",
    '{A_friend} named {friend} said, "I am the fastest of all. Nobody can win against me." '
    '"Let us run a race," said {name}. {friend} ran very fast, but soon {friend} was tired and fell asleep. '
    "{name} walked slowly and did not stop, and so {he} won the race. ",
    "In spring, {name} put a small seed into the ground. {He} gave it water every day, but nothing happened. "
    '"Be patient," said {a_friend} named {friend}. After some time a green leaf came out, and then a [red|yellow|white|blue] flower. '
    "It was the most beautiful flower of all. ",
    "One day, {name} heard somebody call for help. {A_friend} named {friend} had fallen into a deep hole. "
    "{name} was small, but {he} had a good idea. {He} brought a long rope and pulled {friend} out. "
    '"Thank you," said {friend}. "You are the bravest {hero} I know." ',
)

_TRIO = (
    "Once upon a time there were three {plural}. The first was big, the second was fast, and the third was small and clever. "
    'One day they came to a wide river. The big one said, "I can not swim." The fast one said, "I can not jump so far." '
    "The small one looked around and saw a long tree. They pushed the tree over the river and walked across. "
    "From that day on, the three {plural} [did everything together|were never afraid of a river again]. "
)


@dataclass(frozen=True, slots=True)
class Story:
    """A story and its hero."""

    hero: str
    name: str
    text: str


def _slots(rng: Random, hero: str, name: str) -> dict[str, str]:
    other = rng.choice([animal for animal in HEROES if animal != hero])
    friend = rng.choice([candidate for candidate in _names_for(other) if candidate != name])
    he, his = ("she", "her") if name in SHE else ("he", "his")
    a_friend = with_article(other)
    return {
        "hero": hero, "name": name, "friend": friend, "a_friend": a_friend, "A_friend": capitalized(a_friend),
        "he": he, "He": capitalized(he), "his": his,
    }  # fmt: skip


def _names_for(hero: str) -> tuple[str, ...]:
    return SHE if hero in _FEMALE else HE if hero in _MALE else NAMES


def tell(rng: Random, hero: str = "", name: str = "", opening: str = "") -> Story:
    """A story about the given or a random hero."""
    hero = hero or rng.choice(HEROES)
    name = name or rng.choice(_names_for(hero))
    template = (opening or _OPENING) + rng.choice(PLOTS) + _ENDING
    return Story(hero, name, expand(rng, template, _slots(rng, hero, name)))


def any_story(rng: Random) -> str:
    """A story as plain text."""
    if rng.random() < 0.06:
        return _trio(rng, rng.choice(HEROES))
    opening = _SHORT_OPENING if rng.random() < 0.25 else _OPENING
    return tell(rng, opening=opening).text


def _trio(rng: Random, hero: str) -> str:
    return expand(rng, _TRIO, {"plural": _IRREGULAR.get(hero, hero + "s")}).strip()


def story_turn(rng: Random) -> Turn:
    """A request for a story, and the story."""
    kind = rng.random()
    hero = rng.choice(HEROES)
    if kind < 0.15:
        return Turn(
            rng.choice(("Tell me a story.", "Tell me a short story.", "Write a story.", "Can you tell me a story?")),
            tell(rng).text,
        )
    if kind < 0.22:
        plural = _IRREGULAR.get(hero, hero + "s")
        return Turn(
            rng.choice((f"Tell me a story about 3 {plural}.", f"Tell me a story about three {plural}.")), _trio(rng, hero)
        )
    wish = rng.choice((
        "Tell me a short story about {}.", "Tell me a story about {}.", "Write a short story about {}.",
        "Write a story about {}.", "Can you tell me a story about {}?",
    ))  # fmt: skip
    if kind < 0.4:
        name = rng.choice(_names_for(hero))
        return Turn(wish.format(f"{with_article(hero)} named {name}"), tell(rng, hero, name).text)
    return Turn(wish.format(with_article(hero)), tell(rng, hero).text)
