"""Shards that lie, as clients of a router see it: each answer is checked against its turn, and one that is none is a lost shard."""

from __future__ import annotations

import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serve.process import served
from tests.shards.lying import GARBAGE, Hang, Liar, Lie
from tests.shards.lying_child import FOLDER, LIES
from tests.shards.own_lies import NONSENSE, OWN, at_read, own_lie
from tests.shards.server import BODIES, SECONDS, ServerUnderTest, bare, instance, survives
from tests.shards.upstream_tgi_lies import UPSTREAM_TGI, of_rows, told_once, v3
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def own(
    demo_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[ServerUnderTest, list[Any]], None, None]:
    """A shard of ours, and the answers of one that is true. It ends in good time when it is told to."""
    with instance(demo_tokenizer, tmp_path_factory.mktemp("own"), False) as one:
        yield one, list(map(bare, one.all()))
        assert one.server.stop() == 0


@pytest.fixture(scope="module")
def upstream_tgi(
    demo_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[ServerUnderTest, list[Any]], None, None]:
    """A shard as TGI's are, likewise."""
    with instance(demo_tokenizer, tmp_path_factory.mktemp("upstream_tgi"), True) as one:
        yield one, list(map(bare, one.all()))
        assert one.server.stop() == 0


@pytest.mark.parametrize("lie", OWN, ids=str)
def test_a_lie_of_our_own_shard(own: tuple[ServerUnderTest, list[Any]], lie: Lie) -> None:
    """See `survives`."""
    survives(*own, lie)


@pytest.mark.parametrize("lie", UPSTREAM_TGI, ids=str)
def test_a_lie_of_an_upstream_tgi_shard(upstream_tgi: tuple[ServerUnderTest, list[Any]], lie: Lie) -> None:
    """See `survives`. A request can go on there only if what it has made so far is a text that makes the same tokens again."""
    survives(*upstream_tgi, lie, "the prompt has no text that this shard would read as the same tokens")


FOR_EVER = [
    (False, own_lie("nothing", NONSENSE + "it lacks the rows of step", at_read(lambda turn, truth: pb.TurnResult()))),
    (False, own_lie("garbage", NONSENSE + "4 bytes that are no TurnResult", at_read(lambda turn, truth: GARBAGE))),
    (True, v3("no batch", NONSENSE + "no batch, though request", of_rows(1, lambda truth: truth.ClearField("batch")), "Prefill")),
    (True, v3("it hangs", "the shard hangs", told_once(lambda truth: Hang), "Prefill")),
]


@pytest.mark.parametrize(
    ("is_upstream_tgi", "lie"),
    FOR_EVER,
    ids=[f"{'upstream_tgi' if upstream_tgi else 'own'}, {lie}" for upstream_tgi, lie in FOR_EVER],
)
def test_a_shard_that_lies_for_ever(demo_tokenizer: Tokenizer, tmp_path: Path, is_upstream_tgi: bool, lie: Lie) -> None:
    """It is tried again, in vain: the client gets the reason, and the router ends with a status that is not 0 and one line that says
    why."""
    with instance(demo_tokenizer, tmp_path, is_upstream_tgi, "--shard-restarts", "1") as one:
        one.liar.arm(lie, forever=True)
        answer = one.post(BODIES[0])
        assert answer.status_code == 424 and re.search(lie.says, answer.json()["error"]), answer.text
        assert one.server.child.wait(SECONDS) == 1
    assert re.search(f"tgi: error: the shard is lost: .*{lie.says}", one.server.lines[-1]), one.server.lines[-1]
    assert "Traceback" not in "".join(one.server.lines)


@pytest.mark.parametrize("is_upstream_tgi", [False, True], ids=["own", "upstream_tgi"])
def test_sigterm_while_a_shard_hangs(demo_tokenizer: Tokenizer, tmp_path: Path, is_upstream_tgi: bool) -> None:
    """A router whose shard does not answer ends when it is told to, with status 0, and its client hears why."""
    hang = Lie("it hangs", "Decode" if is_upstream_tgi else "Steps", at_read(lambda turn, truth: Hang) if not is_upstream_tgi else
               told_once(lambda truth: Hang), "")  # fmt: skip
    flags = ("--watchdog-floor", "600", "--graceful-termination-timeout", "2")
    with instance(demo_tokenizer, tmp_path, is_upstream_tgi, *flags) as one, ThreadPoolExecutor(1) as threads:
        one.liar.arm(hang, forever=True)
        asked = threads.submit(one.post, BODIES[0])
        while not one.liar.told:
            assert not asked.done()
        assert one.server.stop() == 0
        assert asked.result().status_code in (424, 503), asked.result().text


def test_lies_of_a_child(tmp_path: Path) -> None:
    """Where the server has started the shard itself, each lie costs that shard its life, and the requests that run go on with the next:
    every answer is the one of a server whose shards are true."""
    lies, site = tmp_path / "lies", tmp_path / "site"
    for folder in (lies, site):
        folder.mkdir()
    (site / "sitecustomize.py").write_text("from tests.shards.lying_child import install\n\ninstall()\n")
    for place, name in enumerate(LIES):
        (lies / f"{place} {name}").touch()
    extra = {"PYTHONPATH": f"{site}:{Path(__file__).parents[2]}", FOLDER: str(lies)}
    with served("--backend", "reference") as server:
        wanted = [bare(ServerUnderTest(Liar(), server, tmp_path).post(body)) for body in BODIES]
    with served("--backend", "reference", extra=extra) as server:
        one = ServerUnderTest(Liar(), server, tmp_path)
        while list(lies.iterdir()):
            assert [bare(one.post(body)) for body in BODIES] == wanted
        one.wait_healthy()
        assert [bare(one.post(body)) for body in BODIES] == wanted
        assert server.stop() == 0
    for (_, says), reason in zip(LIES.values(), one.losses(), strict=True):
        assert re.search(says, reason), reason
