"""Where the server listens: an explicit name is meant; only a container's own falls back."""

from __future__ import annotations

import socket

import pytest

from tests.serve.process import TGI, run, started

REFERENCE = ("--backend", "reference", "--port", "0", "--drain-delay", "0")


@pytest.mark.parametrize("name", ["nosuch.invalid", "two..dots"])
def test_a_name_that_does_not_resolve(name: str) -> None:
    """An explicit name that cannot be resolved is an error that names the flag, not another address."""
    result = run("serve", "--hostname", name, *REFERENCE)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"tgi: error: --hostname {name}: cannot be resolved: ")


def test_an_empty_name() -> None:
    """An empty name is an error."""
    result = run("serve", "--hostname", "", *REFERENCE)
    assert result.returncode == 1 and "--hostname: is empty" in result.stderr


def test_the_variable_of_a_container() -> None:
    """Containers set HOSTNAME to their own name: the server listens everywhere and says which variable it did not follow."""
    with started([*TGI, "serve", *REFERENCE], extra={"HOSTNAME": "c0ffee"}) as server:
        assert server.url.startswith("http://0.0.0.0:")
        warning = [line for line in server.lines if "WARNING" in line and "HOSTNAME" in line]
        assert len(warning) == 1 and "HOSTNAME is c0ffee" in warning[0] and "0.0.0.0" in warning[0]


def test_a_name_that_resolves() -> None:
    """A name given by the flag is looked up, whatever the variable says."""
    with started([*TGI, "serve", "--hostname", "localhost", *REFERENCE], extra={"HOSTNAME": "c0ffee"}) as server:
        assert server.url.startswith(("http://127.0.0.1:", "http://[::1]:"))
        assert not [line for line in server.lines if "WARNING" in line]


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback")
def test_an_ipv6_address_has_brackets() -> None:
    """The printed URL can be opened."""
    with started([*TGI, "serve", "--hostname", "::1", *REFERENCE]) as server:
        assert server.url.startswith("http://[::1]:")
