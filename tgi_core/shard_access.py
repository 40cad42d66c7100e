"""Who may talk to a shard on a TCP port: those that know its token, and over TLS those that hold a certificate it trusts.

A unix socket needs neither: it is in a folder, or has a mode, that keeps other users out.
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
"""The secret that routers, shards and ranks share."""

HOW_TO_SHARE = f"set {TOKEN_VARIABLE}, or --shard-token-file, alike on both sides"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts: the authorities that the other side's certificate is checked against, and this side's own key and certificate."""

    authorities: bytes | None = None
    own: tuple[bytes, bytes] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ShardAccess:
    """What both sides of a connection have in common; by default nothing, as on a unix socket."""

    token: str | None = field(default=None, repr=False)
    tls: Tls | None = None


def access_of_shard(settings: Settings, environ: Mapping[str, str], address: str) -> ShardAccess:
    """What a shard wants of those who call it at an address. Raises StartupError for a TCP port that nothing guards."""
    if address.startswith("unix:"):
        return ShardAccess()
    token = demanded_token(settings, environ, f"a shard on TCP ({address})")
    tls = _tls(settings)
    if tls is not None and tls.own is None:
        raise StartupError(
            "--shard-tls-ca: a shard that checks certificates needs its own; give --shard-tls-cert and --shard-tls-key"
        )
    if tls is None and not ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback:
        _log.warning(
            "%s without TLS: the token and the users' texts cross the network in the clear; --shard-tls-cert and --shard-tls-key "
            "encrypt them",
            address,
        )
    return ShardAccess(token, tls)


def access_of_router(settings: Settings, environ: Mapping[str, str], address: str) -> ShardAccess:
    """What a router shows the shard at an address. Raises StartupError."""
    if address.startswith("unix:"):
        return ShardAccess()
    tls = _tls(settings)
    if tls is not None and tls.authorities is None:
        raise StartupError("--shard-tls-cert: a router also needs --shard-tls-ca, to verify the shard's certificate")
    return ShardAccess(_token(settings, environ), tls)


def demanded_token(settings: Settings, environ: Mapping[str, str], what: str) -> str | None:
    """The token without which `what` lets nobody in; None, with a warning, where that is wanted. Raises StartupError."""
    token = _token(settings, environ)
    if token is None and not settings.shard_without_token:
        raise StartupError(
            f"{what} needs a token: {HOW_TO_SHARE}; or use a unix socket; --shard-without-token admits anyone who can reach the port"
        )
    if token is None:
        _log.warning("--shard-without-token: %s has no token; whoever reaches the port reads what users write", what)
    return token


def _token(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """From the environment or from a file, never from a command line, which every user of a machine can read."""
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
    """What the files hold; None where none is named. Raises StartupError for what is no certificate, or not its key."""
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
            context.load_cert_chain(certificate, key, password="")  # else it would ask for one on the terminal
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
