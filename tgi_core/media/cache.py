"""A cache that is limited in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Values by digest, of at most `most_bytes` in all, or one larger value; the least recently used is evicted first. Not thread-safe."""

    def __init__(self, most_bytes: int, size: Callable[[Value], int]) -> None:
        self.most_bytes, self._size = most_bytes, size
        self._values: OrderedDict[bytes, Value] = OrderedDict()
        self._bytes = 0

    def find(self, key: bytes) -> Value | None:
        """Return a value, now the most recently used."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def keep(self, key: bytes, value: Value) -> None:
        """Add or replace a value."""
        replaced = self._values.pop(key, None)
        self._bytes += self._size(value) - (0 if replaced is None else self._size(replaced))
        self._values[key] = value
        while self._bytes > self.most_bytes and len(self._values) > 1:
            self._bytes -= self._size(self._values.popitem(last=False)[1])

    def clear(self) -> None:
        """Evict all values."""
        self._values.clear()
        self._bytes = 0
