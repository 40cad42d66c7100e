"""Which adapter a client means. A name is looked up in the table of the loaded ones, and used for nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.adapters import can_be_name


class AdapterNames:
    """The model's own name, and those of its adapters."""

    def __init__(self, model: str, adapters: Iterable[str]) -> None:
        self._model, self._adapters = model, frozenset(adapters) - {model}

    def allows(self, asked: str | None) -> bool:
        """Whether it is known, or might be an adapter's somewhere else; a path, or nothing that one could type, is refused."""
        return not asked or asked == self._model or asked in self._adapters or can_be_name(asked)

    def find(self, asked: str | None) -> str | None:
        """The adapter of that name. One that nobody knows means the model itself, as in TGI: clients send names of their own making."""
        return asked if asked in self._adapters else None
