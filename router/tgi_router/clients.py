"""Identification of clients, by the address of the connection or by a header that a gateway sets."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from hashlib import blake2b

from starlette.datastructures import Headers
from starlette.types import Scope

from tgi_core.config import Settings

EVERYBODY = "*"


class Clients:
    """Identifies clients and those whose urgent requests precede the requests of others. Raises ValueError for an invalid
    network."""

    def __init__(self, header: str | None = None, urgent: tuple[str, ...] = ()) -> None:
        self._header = header
        self._everybody = EVERYBODY in urgent
        named = [each for each in urgent if each != EVERYBODY]
        self._names = {_name(each) for each in named} if header is not None else set()
        self._networks = [ipaddress.ip_network(each, strict=False) for each in named] if header is None else []

    @classmethod
    def of_settings(cls, settings: Settings) -> Clients:
        """Create from the settings."""
        return cls(settings.client_header, settings.high_priority_from)

    def of(self, scope: Scope, headers: Headers) -> str:
        """Return a short name of the client. In a header with a list, the last item counts, which the nearest gateway has added."""
        value = headers.get(self._header) if self._header is not None else None
        if value is not None:
            return _name(value.rpartition(",")[2].strip())
        return _neighbourhood(_host(scope))

    def may_be_urgent(self, scope: Scope, client: str) -> bool:
        """Return whether the requests of a client may precede those of others."""
        if self._everybody or client in self._names:
            return True
        host = _host(scope)
        return bool(self._networks and host) and any(_address(host) in network for network in self._networks)


def _host(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _name(value: str) -> str:
    """Return a hash, which has a fixed length and reveals no secret."""
    return blake2b(value.encode(), digest_size=12).hexdigest()


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(maxsize=1024)
def _neighbourhood(host: str) -> str:
    """Return an IPv4 address, or the first 64 bits of an IPv6 address, since its owner can choose the rest."""
    if ":" not in host:
        return host
    address = _address(host)
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)).network_address)
