"""The router by itself, in front of a shard that somebody else runs."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.grpc.shards import served_by_tgi
from tests.serve.process import TGI, ServerProcess, environment, served, started
from tgi_core.model_files import DEMO
from tgi_core.shard_access import TOKEN_VARIABLE
from tgi_core.tokenizer import Tokenizer

LOCAL = ["--hostname", "127.0.0.1", "--port", "0"]
BODY: dict[str, Any] = {
    "inputs": "What is 7 plus 5?",
    "parameters": {"max_new_tokens": 1000, "do_sample": True, "seed": 1, "details": True},
}


def program(name: str) -> str:
    """An installed script."""
    return str(Path(sys.executable).with_name(name))


@contextmanager
def shard(
    *command: str, before: tuple[str, ...] = (), extra: dict[str, str] | None = None
) -> Generator[tuple[Any, str], None, None]:
    """A shard's process, and where it listens; it is killed with the block."""
    with subprocess.Popen(
        [*before, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(extra)
    ) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().removeprefix("listening: ").strip()
        finally:
            child.kill()


def tgi_shard(*arguments: str) -> list[str]:
    """`tgi shard` on the toy model."""
    return [*TGI, "shard", str(DEMO), "--backend", "reference", *arguments]


def router(address: str) -> list[str]:
    """`tgi router`."""
    return [*TGI, "router", "--shard", address, str(DEMO), *LOCAL]


@pytest.fixture(scope="module")
def wanted() -> list[int]:
    """The tokens that a server with a shard of its own makes, in its own process."""
    with served("--backend", "reference", "--in-process") as server:
        made = tokens(server)
        assert len(made) == 1000
        return made


def tokens(server: ServerProcess) -> list[int]:
    """The tokens of the answer."""
    answer = httpx.post(f"{server.url}/generate", json=BODY, timeout=60)
    assert answer.status_code == 200, answer.text
    return [token["id"] for token in answer.json()["details"]["tokens"]]


def test_over_tcp_without_torch(wanted: list[int]) -> None:
    """Router and shard on a port with a token: same answer, the shard's verbs among the router's metrics, and no torch in the router's
    memory. A router without the token is refused in one line."""
    with shard(*tgi_shard("--listen", "127.0.0.1:0"), extra={TOKEN_VARIABLE: "secret"}) as (_, address):
        with started(router(address), {TOKEN_VARIABLE: "secret"}) as server:
            assert tokens(server) == wanted
            maps = Path(f"/proc/{server.child.pid}/maps").read_text()
            assert "torch" not in maps and "numpy" not in maps
            rows = re.search(
                r'^tgi_backend_verb_duration_count{verb="rows"} (\d+)', httpx.get(f"{server.url}/metrics").text, re.M
            )
            assert rows is not None and int(rows.group(1)) >= len(wanted)
            assert server.stop() == 0
        refused = subprocess.run(router(address), capture_output=True, text=True, env=environment(), check=False, timeout=60)
        assert refused.returncode == 1 and "wants a token" in refused.stderr.splitlines()[-1]


def test_a_shard_that_others_start_again(wanted: list[int], tmp_path: Path) -> None:
    """kill -9 of the shard in the middle of a stream: its socket stays, another shard takes it over since nobody listens there, and the
    stream goes on to the same end."""
    socket = tmp_path / "folder" / "shard"
    with (
        shard(*tgi_shard("--uds-path", str(socket))) as (first, address),
        started(router(address)) as server,
        httpx.stream("POST", f"{server.url}/generate_stream", json=BODY, timeout=60) as stream,
    ):
        lines = (line for line in stream.iter_lines() if line)
        made = [next(lines), next(lines)]
        first.kill()
        first.wait()
        assert socket.exists()
        with shard(*tgi_shard("--uds-path", str(socket))):
            made += list(lines)
            assert [json.loads(line.removeprefix("data:"))["token"]["id"] for line in made] == wanted
            assert server.stop() == 0


def test_tgis_own_programs(wanted: list[int], tmp_path: Path) -> None:
    """`text-generation-server serve` and `text-generation-router` meet at the socket that TGI's own would meet at, in a folder that
    others can enter."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    serve = [program("text-generation-server"), "serve", str(DEMO), "--uds-path", str(place / "text-generation-server")]
    with shard(*serve, extra={"BACKEND": "reference"}) as (child, address):
        path = place / "text-generation-server-0"
        assert address == f"unix:{path}" and path.stat().st_mode & 0o077 == 0
        join = [program("text-generation-router"), "--tokenizer-name", str(DEMO), "--master-shard-uds-path", str(path), *LOCAL]
        with started(join) as server:
            assert tokens(server) == wanted
            assert server.stop() == 0
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0


def test_a_shard_of_tgis(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """One that knows nothing of ours is served too."""
    with (
        served_by_tgi(demo_tokenizer, tmp_path) as address,
        started([*router(address), "--max-total-tokens", "64", "--max-batch-prefill-tokens", "64"]) as server,
    ):
        body = {"inputs": "Hello", "parameters": {"max_new_tokens": 9}}
        assert httpx.post(f"{server.url}/generate", json=body, timeout=60).json()["generated_text"]
        assert server.stop() == 0


def test_a_wrong_address() -> None:
    """Words that are no address, and a port where nobody listens, are one line each."""
    for address, says in {"nowhere": "--shard nowhere", "127.0.0.1:9": "shard at 127.0.0.1:9"}.items():
        result = subprocess.run(router(address), capture_output=True, text=True, env=environment(), check=False, timeout=60)
        assert result.returncode == 1 and says in result.stderr.splitlines()[-1], result.stderr


HOSTS = """
set -e
ip link set lo up
unshare -n sleep 600 & other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do :; done
ip link add name here type veth peer name there
ip link set there netns $other
ip address add 10.77.0.1/24 dev here
ip link set here up
nsenter -t $other -n ip link set lo up
nsenter -t $other -n ip address add 10.77.0.2/24 dev there
nsenter -t $other -n ip link set there up
"""


def test_two_hosts(wanted: list[int], tmp_path: Path) -> None:
    """A shard in one network namespace, the router in another, a virtual cable between them: the answer is the same, and without the
    token no shard listens where others can reach it."""
    script = tmp_path / "hosts.sh"
    script.write_text(
        HOSTS
        + f"nsenter -t $other -n {' '.join(tgi_shard('--listen', '10.77.0.2:7777'))} > {tmp_path}/shard 2>&1 & shard=$!\n"
        + f"until grep -q listening: {tmp_path}/shard || ! kill -0 $shard; do :; done\n"
        + f"{' '.join(router('10.77.0.2:7777'))} 2> {tmp_path}/router & router=$!\n"
        + f"until grep -q 'ready after' {tmp_path}/router || ! kill -0 $router; do :; done\n"
        + f"cat {tmp_path}/router >&2\n"
        + f"url=$(sed -n 's/.*ready after.*: http/http/p' {tmp_path}/router)\n"
        + f"{sys.executable} -c 'import httpx, sys; print(httpx.post(sys.argv[1], content=sys.argv[2], timeout=60,"
        + ' headers={"content-type": "application/json"}).text)\' "$url/generate" '
        + f"'{json.dumps(BODY)}'\n"
        + "status=$?; kill $router; wait $router; kill $shard $other; exit $status\n"
    )
    if not (shutil.which("unshare") and shutil.which("ip") and shutil.which("nsenter")):
        pytest.skip("this machine has no unshare, ip or nsenter")
    trial = tmp_path / "trial.sh"
    trial.write_text(HOSTS + "kill $other\n")
    tried = subprocess.run(["unshare", "-rn", "sh", str(trial)], capture_output=True, text=True, check=False, timeout=30)
    if tried.returncode != 0:
        pytest.skip(f"no network namespaces here: {tried.stderr.strip()}")
    result = subprocess.run(
        ["unshare", "-rn", "sh", str(script)],
        capture_output=True, text=True, env=environment({TOKEN_VARIABLE: "secret"}), check=False, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr + (tmp_path / "shard").read_text()
    assert [token["id"] for token in json.loads(result.stdout)["details"]["tokens"]] == wanted
