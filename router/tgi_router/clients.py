"""Which client a request comes from: by the address of its connection, or by a header that a gateway sets."""

from __future__ import annotations

import ipaddress
from hashlib import blake2b

from starlette.datastructures import Headers
from starlette.types import Scope

from tgi_core.config import Settings

EVERYBODY = "*"


class Clients:
    """Identifies clients, and knows whose urgent requests go before those of others. Raises ValueError for an invalid network."""

    def __init__(self, header: str | None = None, urgent: tuple[str, ...] = ()) -> None:
        self._header = header
        self._everybody = EVERYBODY in urgent
        named = [each for each in urgent if each != EVERYBODY]
        self._names = {_name(each) for each in named} if header is not None else set()
        self._networks = [ipaddress.ip_network(each, strict=False) for each in named] if header is None else []

    @classmethod
    def of_settings(cls, settings: Settings) -> Clients:
        """As the settings say."""
        return cls(settings.client_header, settings.high_priority_from)

    def of(self, scope: Scope, headers: Headers) -> str:
        """A short name of the sender. Of a list in the header the last item counts, which the nearest gateway has added."""
        value = headers.get(self._header) if self._header is not None else None
        if value is not None:
            return _name(value.rpartition(",")[2].strip())
        return _neighbourhood(_host(scope))

    def may_be_urgent(self, scope: Scope, client: str) -> bool:
        """Whether the requests of a client may go before those of others."""
        if self._everybody or client in self._names:
            return True
        host = _host(scope)
        return bool(self._networks and host) and any(_address(host) in network for network in self._networks)


def _host(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _name(value: str) -> str:
    """A hash: it has a fixed length and shows no secret."""
    return blake2b(value.encode(), digest_size=12).hexdigest()


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _neighbourhood(host: str) -> str:
    """An IPv4 address, or the first 64 bits of an IPv6 address, since its owner can choose the others."""
    if ":" not in host:
        return host
    address = _address(host)
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)).network_address)
