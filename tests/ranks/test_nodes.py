"""Ranks on two machines: docs/ranks.md's recipe for torchrun, and the script for Slurm."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ranks.test_processes import answers, looping, of_one_rank
from tests.ranks.two_nodes import Node, two_nodes
from tests.scheduler.device import quiet, request
from tests.serve.process import environment, run, started
from tgi_core.client.connecting import connect
from tgi_core.model_files import DEMO
from tgi_core.scheduler import GenerationFailed
from tgi_core.server import rank_link
from tgi_core.server.rank_link import Link, LinkClosed
from tgi_core.shard_access import TOKEN_VARIABLE
from tgi_core.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "deploy/slurm/tgi.sbatch"
TOOLS = str(Path(sys.executable).parent)
PROMPT, LONG = "What is 7 plus 5?", 6
BODY = {"inputs": PROMPT, "parameters": {"max_new_tokens": LONG, "details": True}}


def recipe(socket_path: Path, master: str) -> str:
    """docs/ranks.md's command for torchrun, for this model and these machines."""
    found = re.search(r"^torchrun --nnodes 2(?:.*\\\n)*.*", (ROOT / "docs/ranks.md").read_text(), re.MULTILINE)
    assert found is not None
    text = found[0].replace("10.0.0.1", master).replace("MODEL", f"{DEMO} --backend cpu --dtype float32")
    return re.sub(r"(?<=--uds-path )\S+", str(socket_path), text)


def run_on(node: Node, command: list[str], extra: Mapping[str, str], stack: ExitStack) -> subprocess.Popen[str]:
    """A command on a machine, which ends with the test."""
    with_tools = environment({"PATH": f"{TOOLS}:/usr/sbin:/usr/bin:/sbin:/bin", TOKEN_VARIABLE: "secret", **extra})
    child = stack.enter_context(
        subprocess.Popen(node.command(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=with_tools)
    )
    stack.callback(end_all, child.pid)
    return child


def end_all(pid: int) -> None:
    """Kill a process with its children, if it still runs."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                each.kill()


@pytest.mark.timeout(600)
async def test_torchrun_over_two_machines(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The tokens are those of one process. When one machine is lost, torchrun ends on the other, with one line that says so."""
    expected = await of_one_rank(demo_tokenizer)
    path = tmp_path / "ranks" / "shard"
    with ExitStack() as stack:
        nodes = stack.enter_context(two_nodes())
        command = ["bash", "-c", recipe(path, nodes[0].address)]
        first, second = (run_on(node, command, {"NODE": str(rank)}, stack) for rank, node in enumerate(nodes))
        assert first.stdout is not None
        while "listening: " not in (line := first.stdout.readline()):
            assert line, "rank 0 has ended"
        connected = await connect(f"unix:{path}", DEMO, demo_tokenizer, quiet)
        async with looping(connected.shard, connected.info) as loop:
            assert await answers(loop) == expected
            stream = loop.submit(request((1, 2), 200))
            await anext(stream)
            end_all(second.pid)
            with pytest.raises(GenerationFailed):
                async for _ in stream:
                    pass
        said, _ = await asyncio.to_thread(first.communicate, timeout=60)
        assert first.returncode == 1 and said.count("rank 1 is gone: ending the group of 2 ranks") == 1, said


STAND_INS = {
    "scontrol": 'echo "$NODES"; seq 20000\n',  # more than a pipe holds
    "srun": """
while [[ $1 == --* ]]; do shift; done
set -m
for rank in 0 1; do
    holder=HOLDER$rank
    SLURM_PROCID=$rank SLURM_LOCALID=0 nsenter -n -t "${!holder}" "$@" &
done
trap 'kill -TERM $(jobs -p)' TERM
status=0
while [[ -n $(jobs -pr) ]]; do
    wait -n || { status=$?; kill -KILL $(jobs -pr); }
done 2> /dev/null
exit $status
""",
}
"""What Slurm's commands do: `srun` starts a task on each of two machines, and ends both when one ends with an error."""


def job(tmp_path: Path, nodes: tuple[Node, Node]) -> dict[str, str]:
    """The environment of a job's script on two machines."""
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / name).chmod(0o755)
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1",
        "NODES": "\n".join(node.address for node in nodes),
        **{f"HOLDER{rank}": str(node.holder) for rank, node in enumerate(nodes)},
        "MODEL": str(DEMO),
        "TMPDIR": str(tmp_path),
        "PORT": "0",
        "ROUTER_FLAGS": "--hostname 127.0.0.1 --drain-delay 0",
        "PATH": f"{tmp_path}:{TOOLS}:/usr/sbin:/usr/bin:/sbin:/bin",
    }


def ask(node: Node, url: str) -> list[int]:
    """The tokens of one answer, asked for on a machine."""
    script = "import httpx, sys; print(httpx.post(sys.argv[1], json=eval(sys.argv[2]), timeout=200).text)"
    command = node.command(sys.executable, "-c", script, f"{url}/generate", repr(BODY))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    return tokens(json.loads(done.stdout))


def tokens(answer: Any) -> list[int]:
    """The token ids of an answer."""
    return [token["id"] for token in answer["details"]["tokens"]]


@pytest.mark.timeout(600)
async def test_slurm_over_two_machines(demo_tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The script starts a rank on each machine and the router on the first: the tokens are those of one process. When a rank is
    lost, another group of ranks continues with the same router; SIGTERM ends the job with status 0, and leaves nothing behind."""
    [expected] = await of_one_rank(demo_tokenizer, (request(tuple(demo_tokenizer.encode(PROMPT).ids), LONG),))
    with two_nodes() as nodes:
        script = nodes[0].command("bash", str(SBATCH), "--backend", "cpu", "--dtype", "float32")
        with started(script, job(tmp_path, nodes)) as server:
            assert ask(nodes[0], server.url) == expected
            (follower,) = (each for each in psutil.Process(server.child.pid).children(recursive=True) if is_rank(each, "1"))
            follower.kill()
            assert ask(nodes[0], server.url) == expected
            assert sum("ranks ended with status" in line for line in server.lines) == 1
            assert server.stop() == 0
    assert not (tmp_path / "tgi-4711").exists()


def is_rank(process: psutil.Process, rank: str) -> bool:
    """Whether a process is that rank of a shard."""
    with suppress(psutil.Error):
        return "shard" in process.cmdline() and process.environ().get("RANK") == rank
    return False


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_name_that_other_machines_cannot_reach(rank: str) -> None:
    """A rendezvous on the loopback, as the default and many machines' own names are, is refused at once by every rank."""
    place = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", TOKEN_VARIABLE: "secret"}
    result = run("shard", str(DEMO), "--backend", "reference", extra=place)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert "--master-addr localhost: is " in result.stderr and "use rank 0's address" in result.stderr


def test_a_machine_without_power_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP, a rank asks whether the other machine is still there, and gives up within half a minute; here, where the cable is pulled,
    soon: the connection counts as closed."""
    asked = sum(rank_link.KEEP_ALIVE[option] * times for option, times in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 3)))
    assert asked <= 30 and rank_link.KEEP_ALIVE[socket.TCP_USER_TIMEOUT] <= 30_000
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        monkeypatch.setitem(rank_link.KEEP_ALIVE, option, 1)
    monkeypatch.setitem(rank_link.KEEP_ALIVE, socket.TCP_USER_TIMEOUT, 500)
    with ExitStack() as stack:
        nodes = stack.enter_context(two_nodes())
        server = stack.enter_context(socket_on(nodes[0]))
        server.bind((nodes[0].address, 0))
        server.listen()
        stream = stack.enter_context(socket_on(nodes[1]))
        stream.connect(server.getsockname())
        link = Link(stack.enter_context(server.accept()[0]))
        nodes[1].set_up("link", "set", "cable", "down")
        with pytest.raises(LinkClosed, match=r"timed out|No route|unreachable"):
            link.receive()


def socket_on(node: Node) -> socket.socket:
    """A TCP socket of a machine, which a process there has made."""
    ours, theirs = socket.socketpair()
    script = "import socket; made = socket.socket(); socket.send_fds(socket.socket(fileno=0), [b'.'], [made.fileno()])"
    with ours:
        with theirs:
            subprocess.run(node.command(sys.executable, "-c", script), stdin=theirs.fileno(), check=True, timeout=60)
        _, [number], _, _ = socket.recv_fds(ours, 1, 1)
    return socket.socket(fileno=number)
