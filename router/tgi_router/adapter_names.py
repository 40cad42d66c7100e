"""LoRA adapter names in requests: which adapter a client means, or the base model. A name is looked up in the table of the loaded
ones, and used for nothing else."""

from __future__ import annotations

from collections.abc import Iterable

from tgi_core.adapters import can_be_name


class AdapterNames:
    """Names of the model and of its adapters."""

    def __init__(self, model: str, adapters: Iterable[str]) -> None:
        self._model, self._adapters = model, frozenset(adapters) - {model}

    def allows(self, asked: str | None) -> bool:
        """Return whether a name is known or at least plausible; paths and unprintable names are rejected."""
        return not asked or asked == self._model or asked in self._adapters or can_be_name(asked)

    def find(self, asked: str | None) -> str | None:
        """Return the adapter with that name. An unknown name selects the model itself, as in TGI: clients send arbitrary names."""
        return asked if asked in self._adapters else None
