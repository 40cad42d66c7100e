"""Fetches images from hosts that the operator allows.

A URL in a request may be an attempt to let the server connect to something that the client cannot reach itself. So a host must be on a
list, all of its addresses must be public, and the connection goes to an address that was checked, whatever the name resolves to a moment
later. Each redirect is checked in the same way. Sizes and times are limited.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from time import monotonic
from urllib.parse import SplitResult, urljoin, urlsplit

from tgi_router.errors import ValidationFailed

SECONDS = 10.0
"""Limit of time per image, redirects included."""
REDIRECTS = 3
"""Maximum number of redirects per image."""

_THREADS = 8
_PIECE = 1 << 16
_MOVED = (301, 302, 303, 307, 308)
_LONGEST = 100
_PORTS = {"http": 80, "https": 443}
_SLOW = f"it takes longer than {SECONDS:.0f} seconds"


class _Refused(Exception):
    """An image is not fetched; the message says why."""


def is_public(address: str) -> bool:
    """Whether an address belongs to the internet: not private, not link-local, not this machine's."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and (inner := found.ipv4_mapped or found.sixtofour) is not None:
        found = inner
    return found.is_global and not found.is_multicast


class ImageFetcher:
    """Fetches images of at most `max_bytes` from the hosts in `domains`; `*.HOST` allows subdomains. For tests: `public` says which
    addresses may be connected to, and `port` replaces that of URLs."""

    def __init__(
        self, domains: Iterable[str], max_bytes: int, public: Callable[[str], bool] = is_public, port: int | None = None
    ) -> None:
        self._domains = frozenset(domain.lower().rstrip(".") for domain in domains)
        self._max_bytes, self._public, self._port = max_bytes, public, port
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="image-fetch")

    def fetches(self, url: str) -> bool:
        """Whether a URL is an http or https URL, to be fetched or refused; false for all URLs if no hosts are allowed."""
        return bool(self._domains) and url[:8].lower().startswith(("http://", "https://"))

    async def fetch(self, url: str) -> bytes:
        """Return the image at a URL. Raises ValidationFailed."""
        try:
            async with asyncio.timeout(SECONDS + 1):  # a name may take longer to resolve
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._fetch, url)
        except TimeoutError:
            raise ValidationFailed(f"Could not fetch image: {_SLOW}") from None
        except _Refused as error:
            raise ValidationFailed(f"Could not fetch image: {error}") from error

    def _fetch(self, url: str) -> bytes:
        deadline = monotonic() + SECONDS
        for _ in range(1 + REDIRECTS):
            try:
                found = self._get(url, deadline)
            except (OSError, http.client.HTTPException, ValueError) as error:
                _check_time(deadline)
                raise _Refused(f"{type(error).__name__} while connecting to {_shown(url)}") from error
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise _Refused(f"more than {REDIRECTS} redirects")

    def _get(self, url: str, deadline: float) -> bytes | str:
        """Return the image, or the target of a redirect."""
        target = urlsplit(url)
        connection = self._connect(target, deadline)
        timer = Timer(_check_time(deadline), connection.sock.shutdown, (socket.SHUT_RDWR,))
        timer.daemon = True
        timer.start()  # a server that sends a byte now and then never exceeds the socket's own limit
        try:
            path = (target.path or "/") + (f"?{target.query}" if target.query else "")
            connection.request(
                "GET", path, headers={"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "tgi-core"}
            )
            with connection.getresponse() as response:
                if response.status in _MOVED:
                    return response.headers.get("Location") or ""
                if response.status != 200:
                    raise _Refused(f"{_shown(url)} responded with {response.status}")
                kind = response.headers.get_content_type()
                if not kind.startswith("image/") and kind != "application/octet-stream":
                    raise _Refused(f"{_shown(url)} is not an image but {kind[:_LONGEST]!r}")
                return self._read(response, deadline)
        finally:
            timer.cancel()
            connection.close()

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        pieces, size, most = list[bytes](), 0, self._max_bytes
        if (response.length or 0) > most:
            raise _Refused(f"Image size {response.length} bytes exceeds maximum allowed size of {most} bytes")
        while True:
            piece = response.read1(_PIECE)
            _check_time(deadline)
            if not piece and response.length:
                raise _Refused("the connection broke")
            if not piece:
                return b"".join(pieces)
            size += len(piece)
            if size > most:
                raise _Refused(f"Image size exceeds maximum allowed size of {most} bytes")
            pieces.append(piece)

    def _connect(self, target: SplitResult, deadline: float) -> http.client.HTTPConnection:
        """Connect to an address of the target that has been checked."""
        host = (target.hostname or "").rstrip(".")
        if target.scheme not in _PORTS or target.username is not None or not self._allows(host):
            raise _Refused(f"{_shown(target.geturl())} is not on a host that --allowed-media-domains allows")
        usual = _PORTS[target.scheme]
        if target.port not in (None, usual):
            raise _Refused(f"port {target.port} is not allowed")
        port = self._port or usual
        addresses = [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if not all(map(self._public, addresses)):
            raise _Refused(f"{host[:_LONGEST]} has an address that is not public")
        connection = http.client.HTTPConnection(host, port)
        stream = socket.create_connection((addresses[0], port), timeout=_check_time(deadline))
        if target.scheme == "https":
            stream = ssl.create_default_context().wrap_socket(stream, server_hostname=host)
        connection.sock = stream
        return connection

    def _allows(self, host: str) -> bool:
        parts = host.split(".")
        return host in self._domains or any(f"*.{'.'.join(parts[place:])}" in self._domains for place in range(1, len(parts)))


def _check_time(deadline: float) -> float:
    """Return the seconds that are left."""
    left = deadline - monotonic()
    if left <= 0:
        raise _Refused(_SLOW)
    return left


def _shown(url: str) -> str:
    """The beginning of a URL for an error message, without its query, which may contain secrets."""
    return repr(url.partition("?")[0][:_LONGEST])
