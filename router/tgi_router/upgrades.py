"""Protocol upgrade offers, which Java's client sends with each request: they are declined, and HTTP/1.1 continues."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFER = (b"upgrade", b"connection", b"http2-settings")


class HttpOnlyProtocol(HttpToolsProtocol):
    """uvicorn's protocol, except that it ignores upgrade offers; uvicorn would leave the body of such a request to the new
    protocol."""

    offered: bytes | None = None
    """Method of a request with an upgrade offer, until it is parsed again without the offer."""

    def feed(self, data: bytes) -> None:
        """Parse `data`. Raises HttpParserError."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            if self.offered is None:
                raise HttpParserError from upgrade
            method, self.offered = self.offered, None
            self.parser = HttpRequestParser(self)
            self.feed(self._head_without_offer(method) + data[upgrade.args[0] :])

    def on_headers_complete(self) -> None:
        """Start the request, unless it has an upgrade offer."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self.offered = self.parser.get_method()
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Complete the request; with an upgrade offer, only its head is complete."""
        if self.offered is None:
            super().on_message_complete()

    def _head_without_offer(self, method: bytes) -> bytes:
        head = [method, b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            if name not in _OFFER:
                head += [name, b": ", value, b"\r\n"]
        return b"".join([*head, b"\r\n"])
