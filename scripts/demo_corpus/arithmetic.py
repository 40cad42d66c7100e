"""Simple arithmetic, in symbols and in words."""

from dataclasses import dataclass
from random import Random

from demo_corpus.document import Turn

_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_SMALL, _LARGE = 12, 99


@dataclass(frozen=True, slots=True)
class Sum:
    """`left` plus, minus or times `right`."""

    left: int
    operation: str
    right: int

    @property
    def result(self) -> int:
        """The result."""
        match self.operation:
            case "plus":
                return self.left + self.right
            case "minus":
                return self.left - self.right
            case _:
                return self.left * self.right

    @property
    def in_words(self) -> str:
        """`7 plus 5`."""
        return f"{self.left} {self.operation} {self.right}"

    @property
    def in_signs(self) -> str:
        """`7 + 5`."""
        return f"{self.left} {_SIGNS[self.operation]} {self.right}"


def random_sum(rng: Random) -> Sum:
    """Random sum: mostly numbers up to 12, sometimes two-digit additions and subtractions, never with a negative result."""
    operation = rng.choices(("plus", "minus", "times"), weights=(5, 3, 2))[0]
    largest = 10 if operation == "times" else rng.choice((_SMALL, _SMALL, _LARGE, _LARGE))
    left, right = rng.randint(0, largest), rng.randint(0, largest)
    return Sum(max(left, right), operation, min(left, right)) if operation == "minus" else Sum(left, operation, right)


def sum_turn(rng: Random, task: Sum) -> Turn:
    """A question about a sum, in words or symbols, answered in the same form."""
    if rng.random() < 0.6:
        question = rng.choice(("What is {}?", "What is {}?", "How much is {}?", "Calculate {}."))
        return Turn(question.format(task.in_words), f"{task.in_words} is {task.result}.")
    question = rng.choice(("What is {}?", "What is {}?", "{} = ?", "{} =", "Calculate {}.", "{}"))
    return Turn(question.format(task.in_signs), f"{task.in_signs} = {task.result}.")


def sum_line(rng: Random, task: Sum) -> tuple[str, str]:
    """A sum as a line of text: the given part and the part to learn."""
    return (f"{task.in_signs} =", f" {task.result}.") if rng.random() < 0.5 else (f"{task.in_words} is", f" {task.result}.")


def number_turn(rng: Random) -> Turn:
    """A question about one or two numbers other than a sum."""
    number, other = rng.sample(range(100), 2)
    kind = rng.randrange(4)
    if kind == 0:
        return Turn(f"What number comes after {number}?", f"{number + 1} comes after {number}.")
    if kind == 1:
        parity = "odd" if number % 2 else "even"
        return Turn(f"Is {number} even or odd?", f"{number} is {parity}.")
    if kind == 2:
        return Turn(f"Which is larger, {number} or {other}?", f"{max(number, other)} is larger than {min(number, other)}.")
    return _counting(rng)


def _counting(rng: Random) -> Turn:
    first = rng.choice((1, 1, rng.randint(2, 60)))
    last = first + rng.randint(2, 19)
    question = f"Count to {last}." if first == 1 and rng.random() < 0.7 else f"Count from {first} to {last}."
    return Turn(question, ", ".join(str(number) for number in range(first, last + 1)) + ".")


def word_problem(rng: Random, name: str) -> Turn:
    """A one-step word problem."""
    thing = rng.choice(("apples", "books", "balls", "coins", "flowers", "eggs"))
    more, fewer = sorted(rng.sample(range(1, 13), 2), reverse=True)
    if rng.random() < 0.5:
        change, result = f"gets {fewer} more", more + fewer
    else:
        change, result = f"gives away {fewer}", more - fewer
    question = f"{name} has {more} {thing} and {change}. How many {thing} does {name} have now?"
    return Turn(question, f"{name} has {result} {thing} now.")
