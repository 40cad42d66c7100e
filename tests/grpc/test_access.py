"""Who may call a shard on a TCP port: its token guards every method, TLS is there for whoever wants it, nothing is open by oversight."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.grpc.certificates import Certificates, signed
from tests.grpc.shards import model
from tests.scheduler.device import quiet
from tests.serve.process import TGI, environment, run
from tgi_core.backend import WarmupPlan
from tgi_core.client.connecting import connect
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.model_files import DEMO
from tgi_core.server.grpc_address import prepare_unix
from tgi_core.server.grpc_host import ShardHost
from tgi_core.server.grpc_server import ShardServer
from tgi_core.shard_access import TOKEN_VARIABLE, ShardAccess, access_of_router, access_of_shard
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.methods import TOKEN, V2, V3, Method

SECRET = "a token, long enough"
SHARD = ("shard", str(DEMO), "--backend", "reference")
WRONG: list[list[tuple[str, str]]] = [
    [], [(TOKEN, "")], [(TOKEN, "guess")], [(TOKEN, SECRET[:-1])], [(TOKEN, SECRET + "x")], [(TOKEN, SECRET.upper())],
    [(TOKEN, SECRET)] * 2, [(TOKEN, "guess"), (TOKEN, SECRET)], [("authorization", f"Bearer {SECRET}")],
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded(demo_tokenizer: Tokenizer) -> Generator[tuple[ShardServer, ShardHost], None, None]:
    """A shard with a token on a port of the loopback, warmed up."""
    host = ShardHost()
    server = ShardServer(host, "127.0.0.1:0", ShardAccess(SECRET))
    server.start()
    host.open(lambda: model(demo_tokenizer)).result()
    host.warmup(WarmupPlan(max_row_tokens=64))
    yield server, host
    server.stop()
    assert host.close(60)


def call(address: str, method: Method | str, metadata: list[tuple[str, str]], message: bytes = b"") -> grpc.RpcError:
    """What a call fails with."""
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        path = method if isinstance(method, str) else method.path
        with pytest.raises(grpc.RpcError) as caught:
            if isinstance(method, Method) and method.streaming:
                next(iter(channel.stream_stream(path)(iter([message]), metadata=metadata, timeout=30)))
            else:
                channel.unary_unary(path)(message, metadata=metadata, timeout=30)
        return caught.value


@pytest.mark.parametrize("metadata", WRONG, ids=range(len(WRONG)))
def test_every_method_wants_the_token(guarded: tuple[ShardServer, ShardHost], metadata: list[tuple[str, str]]) -> None:
    """No token, a part of it, it twice: every method of both versions, and one that there is not, is UNAUTHENTICATED with what to do on
    both sides; the shard does nothing."""
    server, host = guarded
    turns = host.health().turns
    for method in (*V3.values(), *V2.values(), "/generate.v3.TextGenerationService/Nothing"):
        error: Any = call(server.address, method, metadata)
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED, method
        assert "TGI_SHARD_TOKEN" in error.details() and "--shard-token-file" in error.details() and SECRET not in error.details()
    assert host.health().turns == turns


def test_refused_before_it_is_read(guarded: tuple[ShardServer, ShardHost]) -> None:
    """Who has no token is refused without the shard taking in a message of 64 MiB."""
    sent: Any = call(guarded[0].address, V3["Prefill"], [], bytes(1 << 26))
    assert sent.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_strangers_hold_nobody_up(guarded: tuple[ShardServer, ShardHost], demo_tokenizer: Tokenizer) -> None:
    """Sixty streams without a token, which say nothing, keep no router with a token waiting."""
    address, never = guarded[0].address, threading.Event()

    def silent() -> Generator[bytes, None, None]:
        never.wait(60)
        yield from ()

    with grpc.insecure_channel(address) as channel:
        opened = [channel.stream_stream(V3["Steps"].path)(silent()) for _ in range(60)]
        connected = await connect(address, DEMO, demo_tokenizer, quiet, ShardAccess(SECRET))
        assert await connected.shard.healthy()
        await connected.shard.close()
        never.set()
        assert {stream.code() for stream in opened} == {grpc.StatusCode.UNAUTHENTICATED}


@contextmanager
def shard(*arguments: str, extra: dict[str, str] | None = None) -> Generator[tuple[subprocess.Popen[str], str], None, None]:
    """`tgi shard` on a port of the loopback, and where it listens."""
    command = [*TGI, *SHARD, "--listen", "127.0.0.1:0", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment(extra)) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().removeprefix("listening: ").strip()
        finally:
            child.kill()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::1]"])
def test_no_port_without_a_token(host: str) -> None:
    """Without a token nothing listens, on the loopback neither; the line says what to do."""
    result = run(*SHARD, "--listen", f"{host}:0")
    assert result.returncode == 1 and not result.stdout, result.stdout
    [line] = result.stderr.splitlines()
    assert line.startswith(f"tgi: error: a shard on TCP ({host}:0) needs a token: set TGI_SHARD_TOKEN or --shard-token-file"), (
        line
    )


async def test_without_a_token_on_demand(demo_tokenizer: Tokenizer) -> None:
    """--shard-without-token listens and warns."""
    with shard("--shard-without-token") as (child, address):
        connected = await connect(address, DEMO, demo_tokenizer, quiet)
        await connected.shard.close()
        child.terminate()
        assert "WARNING" in (told := child.communicate()[1]) and "--shard-without-token" in told


async def test_a_token_from_a_file(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The file of a secret, with the line break that editors leave, serves both sides; the token is in no command line and no log."""
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    with shard(extra={"TGI_SHARD_TOKEN_FILE": str(file), "LOG_LEVEL": "debug"}) as (child, address):
        assert SECRET.encode() not in Path(f"/proc/{child.pid}/cmdline").read_bytes()
        access = access_of_router(Settings(shard_token_file=str(file)), {}, address)
        connected = await connect(address, DEMO, demo_tokenizer, quiet, access)
        await connected.shard.close()
        with pytest.raises(StartupError, match=r"wants a token.*TGI_SHARD_TOKEN"):
            await connect(address, DEMO, demo_tokenizer, quiet, ShardAccess("guess"))
        child.terminate()
        told = child.communicate()[1]
        assert "without this shard's token was refused" in told and SECRET not in told
        assert SECRET not in repr(access)


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read: No such file"), ("", "is empty"), (" \n", "is empty"), ("a\nb", "line break"), ("é", "ASCII")],
)
def test_a_file_without_a_token(tmp_path: Path, content: str | None, says: str) -> None:
    """A file that is missing or empty, or holds what no header can, is one error, on both sides."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    settings = Settings(shard_token_file=str(file))
    for side in (access_of_shard, access_of_router):
        with pytest.raises(StartupError, match=f"--shard-token-file {file}: .*{says}"):
            side(settings, {}, "127.0.0.1:9")
    with pytest.raises(StartupError, match="give only one"):
        access_of_shard(settings, {TOKEN_VARIABLE: "x"}, "127.0.0.1:9")


@pytest.mark.parametrize("value", ["", " ", "a ", "a\nb", "é", "\udcff"])
def test_a_variable_without_a_token(value: str) -> None:
    """An empty variable, or one that no header can hold, is an error on TCP, and nothing to a unix socket."""
    for side in (access_of_shard, access_of_router):
        with pytest.raises(StartupError, match=TOKEN_VARIABLE):
            side(Settings(shard_without_token=True), {TOKEN_VARIABLE: value}, "127.0.0.1:9")
        assert side(Settings(), {TOKEN_VARIABLE: value}, "unix:/x") == ShardAccess()


async def test_a_unix_socket_wants_no_token(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Where a token is set, a router of TGI's, which knows of none, is served on a socket all the same: its folder guards it."""
    path = tmp_path / "own" / "shard"
    address = prepare_unix(path)
    host = ShardHost()
    server = ShardServer(host, address, access_of_shard(Settings(), {TOKEN_VARIABLE: SECRET}, address))
    server.start()
    try:
        host.open(lambda: model(demo_tokenizer))
        with grpc.insecure_channel(address) as channel:
            info = V3["Info"]
            assert info.response.FromString(channel.unary_unary(info.path)(b"", timeout=60))
    finally:
        server.stop()
        assert host.close(60)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of ours."""
    return signed(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another."""
    return signed(tmp_path_factory.mktemp("tls"), "theirs")


async def reaches(tokenizer: Tokenizer, address: str, **settings: str) -> bool:
    """Whether a router with these settings is served."""
    access = access_of_router(Settings(**settings), {TOKEN_VARIABLE: SECRET}, address)  # type: ignore[arg-type]
    try:
        connected = await connect(address, DEMO, tokenizer, quiet, access)
    except StartupError:
        return False
    assert await connected.shard.healthy()
    await connected.shard.close()
    return True


async def test_tls(demo_tokenizer: Tokenizer, ours: Certificates, theirs: Certificates) -> None:
    """A router that knows the shard's authority is served; one that knows another, or speaks in the clear, or has no token is not."""
    with shard("--shard-tls-cert", ours.cert, "--shard-tls-key", ours.key, extra={TOKEN_VARIABLE: SECRET}) as (_, address):
        assert await reaches(demo_tokenizer, address, shard_tls_ca=ours.ca)
        assert not await reaches(demo_tokenizer, address, shard_tls_ca=theirs.ca)
        with pytest.raises(StartupError, match="do both sides use TLS, or neither"):
            await connect(address, DEMO, demo_tokenizer, quiet, ShardAccess(SECRET))
        access = access_of_router(Settings(shard_tls_ca=ours.ca), {}, address)
        with pytest.raises(StartupError, match="wants a token"):
            await connect(address, DEMO, demo_tokenizer, quiet, access)


async def test_mutual_tls(demo_tokenizer: Tokenizer, ours: Certificates, theirs: Certificates) -> None:
    """A shard that is given an authority serves routers with its certificates alone."""
    flags = ("--shard-tls-cert", ours.cert, "--shard-tls-key", ours.key, "--shard-tls-ca", ours.ca)
    with shard(*flags, extra={TOKEN_VARIABLE: SECRET}) as (_, address):
        known: dict[str, Any] = {"shard_tls_ca": ours.ca}
        assert await reaches(demo_tokenizer, address, **known, shard_tls_cert=ours.cert, shard_tls_key=ours.key)
        assert not await reaches(demo_tokenizer, address, **known)
        assert not await reaches(demo_tokenizer, address, **known, shard_tls_cert=theirs.cert, shard_tls_key=theirs.key)


def test_tls_settings_that_cannot_be(ours: Certificates, theirs: Certificates, tmp_path: Path) -> None:
    """A certificate without its key, a key of another, a file that is none, and half of what a side needs are one error each."""
    nothing = tmp_path / "nothing.pem"
    nothing.touch()
    missing = str(tmp_path / "missing")
    both = (access_of_shard, access_of_router)
    for sides, settings, says in (
        (both, {"shard_tls_cert": ours.cert}, "give both or neither"),
        (both, {"shard_tls_cert": ours.cert, "shard_tls_key": theirs.key}, "--shard-tls-key .*: not PEM files"),
        (both, {"shard_tls_ca": str(nothing)}, "--shard-tls-ca .*: not PEM files"),
        (both, {"shard_tls_ca": missing}, "--shard-tls-ca .*: cannot be read"),
        (both[:1], {"shard_tls_ca": ours.ca}, "needs its own"),
        (both[1:], {"shard_tls_cert": ours.cert, "shard_tls_key": ours.key}, "needs --shard-tls-ca"),
    ):
        for side in sides:
            with pytest.raises(StartupError, match=says):
                side(Settings(**settings), {TOKEN_VARIABLE: SECRET}, "127.0.0.1:9")  # type: ignore[arg-type]
