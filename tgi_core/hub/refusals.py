"""Translation of Hub errors to one-line messages with a remedy."""

from __future__ import annotations

import errno
import os

from tgi_core.errors import StartupError

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN")

NETWORK_LIBRARIES = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"})
"""HTTP libraries whose errors huggingface_hub passes through, depending on its version."""


class Unreachable(Exception):
    """The Hub is unreachable; the message says how it failed."""


def token() -> str | None:
    """Token from the environment; None to use the login stored by the library."""
    return next((os.environ[name] for name in TOKEN_VARIABLES if os.environ.get(name)), None)


def refusal(error: Exception, model: str, revision: str | None, kind: str = "model") -> Exception:
    """Return the exception to raise for a Hub error: StartupError, `Unreachable`, or the error itself if it is a bug."""
    from huggingface_hub import constants, errors

    hub, what = constants.ENDPOINT, f"{kind} {model}"
    if isinstance(error, errors.GatedRepoError):
        return StartupError(f"{what}: is gated; {_access(f'accept its terms at {hub}/{model}')}")
    if isinstance(error, errors.RevisionNotFoundError):
        given = f"--revision {revision}" if kind == "model" else f"--lora-adapters {model}@{revision}"
        return StartupError(f"{given}: {what} has no such branch, tag or commit")
    if isinstance(error, errors.RepositoryNotFoundError):
        return StartupError(f"{what}: not found at {hub}; check the name, and if it is private, {_access('ask for access')}")
    if isinstance(error, errors.HFValidationError):
        return StartupError(f"{what}: not a valid Hub id: {error}")
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return StartupError(f"{what}: a file listed by the Hub is missing: {_first_line(error)}")
    if isinstance(error, errors.HfHubHTTPError):
        return _http(error, hub, what)
    return _other(error, hub, what)


def _http(error: Exception, hub: str, what: str) -> Exception:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    if status in (401, 403):
        return StartupError(f"{what}: {hub} denied access ({status}); {_access('ask for access')}")
    if status == 429 or status >= 500:
        return Unreachable(f"{hub} returned {status}")
    return StartupError(f"{what}: {hub} returned {status}: {_first_line(error)}")


def _other(error: Exception, hub: str, what: str) -> Exception:
    from huggingface_hub import errors

    library = type(error).__module__.split(".")[0]
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError | TimeoutError) or library in NETWORK_LIBRARIES:
        return Unreachable(f"{hub} cannot be reached ({type(cause).__name__})")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT, errno.EPERM):
        return StartupError(f"{what}: cannot write to the cache: {error.strerror}: {error.filename or 'unknown file'}")
    if isinstance(error, OSError):
        return StartupError(f"{what}: {_first_line(error)}")
    return error


def _access(step: str) -> str:
    if token() is None:
        return f"{step}, then set HF_TOKEN to a token of your account"
    return f"{step}; the account of HF_TOKEN has no access yet, or the token is invalid"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
