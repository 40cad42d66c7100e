"""Access control of shards on TCP: clients need the shard's token and, with TLS, a certificate that it trusts.

A Unix socket needs neither: the permissions of its directory or of the socket itself keep other users out.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.settings.spec import check_secret

_log = logging.getLogger(__name__)

TOKEN_VARIABLE = "TGI_SHARD_TOKEN"
"""Environment variable with the secret shared by routers, shards and ranks."""

HOW_TO_SHARE = f"set {TOKEN_VARIABLE} or --shard-token-file to the same token on both sides"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM data: CA certificates to verify the other side with, and this side's own private key and certificate."""

    authorities: bytes | None = None
    own: tuple[bytes, bytes] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ShardAccess:
    """Credentials for connections to a shard; none by default, as on a Unix socket."""

    token: str | None = field(default=None, repr=False)
    tls: Tls | None = None


def access_of_shard(settings: Settings, environ: Mapping[str, str], address: str) -> ShardAccess:
    """Credentials that a shard requires at an address. Raises StartupError for an unprotected TCP port."""
    if address.startswith("unix:"):
        return ShardAccess()
    token = demanded_token(settings, environ, f"a shard on TCP ({address})")
    tls = _tls(settings)
    if tls is not None and tls.own is None:
        raise StartupError(
            "--shard-tls-ca: a shard that verifies certificates needs its own; set --shard-tls-cert and --shard-tls-key"
        )
    if tls is None and not ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback:
        _log.warning(
            "%s without TLS: the token and user prompts are sent over the network unencrypted; set --shard-tls-cert and "
            "--shard-tls-key to encrypt them",
            address,
        )
    return ShardAccess(token, tls)


def access_of_router(settings: Settings, environ: Mapping[str, str], address: str) -> ShardAccess:
    """Credentials that a router presents to the shard at an address. Raises StartupError."""
    if address.startswith("unix:"):
        return ShardAccess()
    tls = _tls(settings)
    if tls is not None and tls.authorities is None:
        raise StartupError("--shard-tls-cert: a router also needs --shard-tls-ca, to verify the shard's certificate")
    return ShardAccess(_token(settings, environ), tls)


def demanded_token(settings: Settings, environ: Mapping[str, str], what: str) -> str | None:
    """The token that `what` requires; with --shard-without-token, None and a warning. Raises StartupError if it is missing."""
    token = _token(settings, environ)
    if token is None and not settings.shard_without_token:
        raise StartupError(
            f"{what} needs a token: {HOW_TO_SHARE}; or use a unix socket; --shard-without-token admits anyone who can reach the port"
        )
    if token is None:
        _log.warning("--shard-without-token: %s has no token; anyone who can reach the port can read user prompts", what)
    return token


def _token(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Read the token from the environment or a file; command lines are visible to every user of the machine."""
    given, path = environ.get(TOKEN_VARIABLE), settings.shard_token_file
    if given is not None and path is not None:
        raise StartupError(f"{TOKEN_VARIABLE} and --shard-token-file {path}: give only one of the two")
    if path is not None:
        return _checked(f"--shard-token-file {path}", _read("--shard-token-file", path).decode(errors="replace").rstrip("\r\n"))
    return None if given is None else _checked(TOKEN_VARIABLE, given)


def _checked(name: str, token: str) -> str:
    check_secret(name, token)
    if not token.isascii():
        raise StartupError(f"{name}: must be ASCII, because it is sent in an HTTP header; choose another token")
    return token


def _tls(settings: Settings) -> Tls | None:
    """Read the TLS files; None if no flag is set. Raises StartupError for an invalid certificate or a key that does not match."""
    certificate, key, authorities = settings.shard_tls_cert, settings.shard_tls_key, settings.shard_tls_ca
    if (certificate is None) != (key is None):
        raise StartupError("--shard-tls-cert and --shard-tls-key: give both or neither")
    if certificate is None and authorities is None:
        return None
    own = (_read("--shard-tls-key", key), _read("--shard-tls-cert", certificate)) if key and certificate else None
    tls = Tls(_read("--shard-tls-ca", authorities) if authorities else None, own)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if certificate and key:
            name = f"--shard-tls-cert {certificate}, --shard-tls-key {key}"
            context.load_cert_chain(certificate, key, password="")  # without it, OpenSSL would prompt on the terminal
        if authorities:
            name = f"--shard-tls-ca {authorities}"
            context.load_verify_locations(authorities)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise StartupError(
            f"{name}: not PEM files of a certificate and its key: {getattr(error, 'reason', None) or error}"
        ) from error
    return tls


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StartupError(f"{flag} {path}: cannot be read: {error.strerror}") from error
