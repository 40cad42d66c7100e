"""Rank 0 and its followers, as processes, over the toy model: what they do together, and how a group ends."""

from __future__ import annotations

import hmac
import os
import signal
import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ranks.toy_rank import VOCABULARY, ToySession, start_toy, toy, toy_session
from tgi_core.backend import (
    EMPTY,
    BackendBug,
    Closed,
    Feature,
    Grant,
    Group,
    Handle,
    InvalidRequest,
    OutOfMemory,
    OutputOptions,
    PeerLost,
    Request,
    Sampling,
    UnknownBatch,
    WarmupPlan,
    hookimpl,
)
from tgi_core.backend.session import Session
from tgi_core.errors import StartupError
from tgi_core.server.rank_link import Link, LinkClosed, accept, join
from tgi_core.server.rank_messages import decode_arguments, plain
from tgi_core.server.rank_peers import Peers
from tgi_core.server.rank_place import Place, own_place
from tgi_core.server.ranks import lead
from tgi_core.shard_access import TOKEN_VARIABLE

PLAN = WarmupPlan(max_rows=8, max_row_tokens=64, num_blocks=32, block_size=4)


def silent(what: str, done: int, total: int, unit: str) -> None:
    """Progress that nobody watches."""


class Ranks:
    """Rank 0 here, others in processes; what becomes of them."""

    def __init__(self, session: Session, pids: list[int], lost: threading.Event) -> None:
        self.session, self.pids, self.lost = session, pids, lost

    def all_ended(self) -> bool:
        """Whether every follower's process is gone."""
        return not any(psutil.pid_exists(pid) for pid in self.pids)


@contextmanager
def ranks(*followers: Mapping[int, str], own: Mapping[int, str] | None = None) -> Generator[Ranks, None, None]:
    """A group; each follower, and rank 0, with the steps at which it fails."""
    started = [start_toy(rank, faults) for rank, faults in enumerate(followers, 1)]
    lost = threading.Event()
    peers = Peers({peer.rank: peer for peer, _ in started}, Group(0, len(started) + 1), lost.set)
    session = Session(lead(peers, "toy", lambda group: toy(own)), "toy")
    try:
        yield Ranks(session, [pid for _, pid in started], lost)
    finally:
        session.close()


def request(id: int, tokens: tuple[int, ...] = (1, 2, 3)) -> Request:
    """A greedy request with blocks of its own."""
    return Request(id, tokens, len(tokens), 0, (tuple(range(4 * id - 3, 4 * id + 1)),), len(tokens))


def run(session: Session) -> list[tuple[int, tuple[int, ...]]]:
    """Joins, refusals and leaves; every token that was made."""
    session.warmup(PLAN, silent)
    made = []
    step = session.prefill((request(1), request(2, (9, 8))), EMPTY, ())
    made += [(row.request_id, row.tokens) for row in session.rows(step).rows]
    with pytest.raises(InvalidRequest):
        session.prefill((request(2),), step.handle, ())
    step = session.prefill((request(3, (7,) * 6),), step.handle, (Grant(1, 0),))
    following = session.decode((step.handle,), ())
    for one in (step, following):
        made += [(row.request_id, row.tokens) for row in session.rows(one).rows]
    handle = session.filter(following.handle, (1, 3))
    with pytest.raises(UnknownBatch):
        session.decode((Handle(10**6),), ())
    step = session.decode((handle,), ())
    made += [(row.request_id, row.tokens) for row in session.rows(step).rows]
    session.clear(None)
    return made


def test_many_ranks_answer_as_one() -> None:
    """Verbs, refusals in between and all: rank 0's rows are those of a single session; errors that all ranks have end nothing, and
    closing ends every process."""
    alone = toy_session()
    expected = run(alone)
    alone.close()
    with ranks({}, {}) as group:
        assert group.session.capabilities() == toy_session().capabilities()
        assert run(group.session) == expected and not group.lost.is_set()
    assert group.all_ended() and not group.lost.is_set()


def test_a_step_that_fails_on_all_ranks_ends_the_step_alone() -> None:
    """The same error of the same step on every rank is an ordinary one: the group goes on."""
    with ranks({1: "OutOfMemory"}, own={1: "OutOfMemory"}) as group:
        group.session.warmup(PLAN, silent)
        step = group.session.prefill((request(1),), EMPTY, ())
        with pytest.raises(OutOfMemory):
            group.session.rows(step)
        group.session.clear(None)
        step = group.session.prefill((request(2),), EMPTY, ())
        assert len(group.session.rows(step).rows) == 1


@pytest.mark.parametrize(
    ("follower", "own"), [({1: "OutOfMemory"}, {}), ({}, {1: "OutOfMemory"}), ({1: "BackendBug"}, {1: "OutOfMemory"})]
)
def test_a_rank_that_fails_alone_ends_the_group(
    follower: dict[int, str], own: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever rank it is, rank 0 says PeerLost within a bounded time and names the error, and no process is left."""
    monkeypatch.setattr("tgi_core.server.rank_peers.AGREE_S", 0.5)
    with ranks(follower, {}, own=own) as group:
        group.session.warmup(PLAN, silent)
        step = group.session.prefill((request(1),), EMPTY, ())
        with pytest.raises(PeerLost, match=r"OutOfMemory|BackendBug|has not said") as caught:
            group.session.rows(step)
            assert group.lost.wait(60)  # rank 0 itself was well
            group.session.clear(None)
        assert group.lost.wait(60) and group.all_ended(), caught.value
        with pytest.raises(PeerLost):
            group.session.decode((step.handle,), ())


def test_a_killed_rank_ends_the_group() -> None:
    """kill -9 of one follower, between two verbs: whoever asked is told, the others end, and the next verb says what happened."""
    with ranks({}, {}) as group:
        group.session.warmup(PLAN, silent)
        step = group.session.prefill((request(1),), EMPTY, ())
        os.kill(group.pids[1], signal.SIGKILL)
        assert group.lost.wait(60)
        with pytest.raises(PeerLost, match="rank 2 was killed by SIGKILL"):
            group.session.rows(step)
        assert group.all_ended()


def test_a_rank_that_cannot_be_told_leaves_nobody_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that is gone just when a verb is sent: the verb is over for rank 0 too, whose process must not end as if it hung."""

    def gone(message: object) -> None:
        raise LinkClosed("gone")

    with ranks({}) as group:
        group.session.warmup(PLAN, silent)
        peers = group.session.implementation._peers  # type: ignore[union-attr]
        monkeypatch.setattr(peers._peers[1].link, "send", gone)
        with pytest.raises(PeerLost):
            group.session.prefill((request(1),), EMPTY, ())
        assert not peers.busy and group.lost.is_set()


def test_ranks_that_differ_do_not_open() -> None:
    """A follower that says other things of itself than rank 0 is a bug of the backend, found before anything runs; rank 0's own
    session is closed, so that the process can open another."""
    peer, pid = start_toy(1, vocabulary=VOCABULARY + 1)
    closed: list[Group] = []

    def open_own(group: Group) -> ToySession:
        class Closing(ToySession):
            @hookimpl
            def close(self) -> Closed:
                closed.append(group)
                return super().close()

        return Closing(VOCABULARY, 128)

    with pytest.raises(BackendBug, match="rank 1 says"):
        lead(Peers({1: peer}, Group(0, 2)), "toy", open_own)
    assert len(closed) == 1 and not psutil.pid_exists(pid)


def test_followers_end_with_rank_0() -> None:
    """A follower whose rank 0 is gone ends."""
    peer, _ = start_toy(1)
    peer.link.send([0, "open", plain(Group(1, 2))])
    assert peer.link.receive(60)[1] == "done"
    peer.link.close()
    assert peer.process is not None and peer.process.outcome(60) == "ended with status 1"


def test_a_rank_that_cannot_open_says_why() -> None:
    """Rank 0's own error is the one that is reported, and the followers end with it."""
    peer, pid = start_toy(1)

    def refuse(group: Group) -> object:
        raise StartupError("no such model")

    with pytest.raises(StartupError, match="no such model"):
        lead(Peers({1: peer}, Group(0, 2)), "toy", refuse)
    assert not psutil.pid_exists(pid)


SAMPLINGS = st.builds(
    Sampling,
    do_sample=st.booleans(),
    temperature=st.floats(0.1, 3),
    logit_bias=st.tuples(st.tuples(st.integers(0, 9), st.floats())),
)
GRANTS = st.lists(st.builds(Grant, st.integers(), st.integers())).map(tuple)
REQUESTS = st.builds(
    Request,
    id=st.integers(1),
    tokens=st.lists(st.integers(0, 9)).map(tuple),
    prompt_len=st.integers(0),
    cached=st.integers(0),
    blocks=st.lists(st.lists(st.integers(1, 9)).map(tuple)).map(tuple),
    take=st.integers(0),
    sampling=SAMPLINGS,
    want=st.builds(OutputOptions, top_n=st.integers(0, 5)),
    adapter=st.none() | st.text(),
    media=st.lists(st.binary()).map(tuple),
)


@given(batch=st.lists(REQUESTS).map(tuple), handle=st.builds(Handle, st.integers(0)), grants=GRANTS)
def test_verbs_arrive_as_they_were_sent(batch: tuple[Request, ...], handle: Handle, grants: tuple[Grant, ...]) -> None:
    """Whatever a verb's arguments, a follower has equal ones."""
    assert repr(decode_arguments("prefill", plain((batch, handle, grants)))) == repr((batch, handle, grants))
    assert decode_arguments("clear", plain((None,))) == (None,)
    plan = WarmupPlan(max_rows=3, features=frozenset({Feature.MASKS, Feature.LORA}))
    assert decode_arguments("warmup", plain((plan,))) == (plan,)


@pytest.mark.parametrize("message", [("explode", []), ("rows", []), ("rows", [[1]]), ("prefill", [1, 2, 3])])
def test_what_is_no_verb_is_refused(message: tuple[str, object]) -> None:
    """A message that fits no verb is a bug, never an attribute or a call."""
    with pytest.raises(BackendBug):
        decode_arguments(*message)


def test_own_place() -> None:
    """torchrun's variables say which rank this is; without them, or in a world of one, there is no group."""
    assert own_place({}, 2) is None and own_place({"RANK": "0", "WORLD_SIZE": "1"}, None) is None
    assert own_place({"RANK": "1", "WORLD_SIZE": "2"}, 2) == Place(1, 2, 1, 2)
    four = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert own_place(four, None) == Place(3, 4, 1, 2)
    for wrong, words in (({"RANK": "2"}, "count from 0"), ({"RANK": "x"}, "RANK=x"), ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2")):
        with pytest.raises(StartupError, match=words):
            own_place({"RANK": "0", "WORLD_SIZE": "2"} | wrong, None)
    with pytest.raises(StartupError, match="leave --num-shard out"):
        own_place({"RANK": "0", "WORLD_SIZE": "2"}, 3)


def test_only_ranks_that_know_the_token_are_let_in() -> None:
    """Over TCP who says nothing of sense, too much, or another token is turned away, the latter with what to do; as is a rank that is
    there already; and the right one still comes in."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found: dict[int, Link] = {}
    waiting = threading.Thread(target=lambda: found.update(accept("127.0.0.1", port, 3, "secret")))
    waiting.start()
    first = join("127.0.0.1", port, 1, "secret")
    for said in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        (1 << 30).to_bytes(4, "little"),
        b"\x02\0\0\0[]",
        (9).to_bytes(4, "little") + b"[[],1,",
    ):
        with socket.create_connection(("127.0.0.1", port)) as stranger, suppress(OSError):  # may be reset at once
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 10):
                pass
    for rank, token, says in ((2, "guess", TOKEN_VARIABLE), (1, "secret", "rank 1 has come already")):
        with pytest.raises(StartupError, match=f"rank 0 turned rank {rank} away: .*{says}"):
            join("127.0.0.1", port, rank, token)
    second = join("127.0.0.1", port, 2, "secret")
    waiting.join(60)
    for rank, link in ((1, first), (2, second)):
        found[rank].send("welcome")
        assert link.receive(60) == "welcome"
    for link in (first, second, *found.values()):
        link.close()


def test_a_rank_follows_no_stranger() -> None:
    """Whoever has taken rank 0's port and does not know the token gets no rank to follow it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def impostor() -> None:
            link = Link(server.accept()[0])
            link.send("challenge")
            rank, theirs, _ = link.receive(60)
            link.send(["welcome", hmac.new(b"guess", f"0 {theirs}".encode(), "sha256").hexdigest()])
            assert rank == 1
            link.close()

        answering = threading.Thread(target=impostor)
        answering.start()
        with pytest.raises(StartupError, match="does not know the ranks' token"):
            join("127.0.0.1", server.getsockname()[1], 1, "secret")
        answering.join(60)
