"""Reading a Dockerfile, as far as ours go."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a stage, with its continued lines joined."""

    stage: str
    word: str
    rest: str


def read(file: Path) -> list[Instruction]:
    """All instructions in order; those before the first stage belong to the stage ""."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found, stage = [], ""
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            stage = rest.split()[-1]
        found.append(Instruction(stage, word, " ".join(rest.split())))
    return found


def copies(instructions: list[Instruction]) -> list[tuple[list[str], str]]:
    """(sources, target) of every COPY out of the build context."""
    taken = [item.rest.split() for item in instructions if item.word == "COPY" and "--from=" not in item.rest]
    return [(words[:-1], words[-1]) for words in taken]


def environment(instructions: list[Instruction]) -> dict[str, str]:
    """All variables that ENV sets."""
    pairs = [word for item in instructions if item.word == "ENV" for word in shlex.split(item.rest)]
    return dict(pair.split("=", 1) for pair in pairs)


def commands(instructions: list[Instruction], beginning: str) -> list[str]:
    """What RUN runs, where it begins so."""
    return [item.rest for item in instructions if item.word == "RUN" and item.rest.startswith(beginning)]
