"""Chooses the first implementation that supports what is needed, and records why those before it do not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

_log = logging.getLogger("tgi_core.engine")


class HasName(Protocol):
    """An implementation that logs and `/info` can name."""

    name: str


_Choice = TypeVar("_Choice", bound=HasName)


def first_supported(choices: Iterable[_Choice], refusal: Callable[[_Choice], str]) -> tuple[_Choice | None, list[str]]:
    """The first choice for which `refusal` is empty, and "not NAME: REASON" for each one before it; None if all are refused."""
    rejected: list[str] = []
    for choice in choices:
        reason = refusal(choice)
        if not reason:
            return choice, rejected
        rejected.append(f"not {choice.name}: {reason}")
    return None, rejected


def attempt(check: Callable[[], str]) -> str:
    """The result of a probe or a self-check, or the text of what it raised. Compilers, launchers, drivers and vendors' libraries each
    fail in their own way: a missing header is a CalledProcessError, a missing driver an AssertionError. They all mean that the
    implementation cannot be used here, but not that the server cannot start.
    """
    try:
        return check()
    except Exception as error:  # noqa: BLE001
        _log.debug("a self-check raised", exc_info=True)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
