"""What must hold between any two turns of a scheduler, whatever has happened."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tests.scheduler.device import Device
from tgi_core.backend import NULL_BLOCK, CacheKind
from tgi_core.blocks import most_window_blocks
from tgi_core.scheduler import Scheduler
from tgi_core.scheduler.policy import MAX_OVERTAKEN
from tgi_core.scheduler.prefix import Entry
from tgi_core.scheduler.sequence import Sequence


def check_books(scheduler: Scheduler) -> None:
    """Each request is in one place, each block is one thing, and each prefix knows who holds it."""
    running, queue, known = scheduler.shard.rows, list(scheduler.queue), scheduler.sequences
    assert [item.wire_id for item in running.values()] == list(running), "a row runs under its own id"
    parked = [item for item in scheduler.paused.values() if not item.wire_id]
    keys = Counter([item.key for item in (*running.values(), *queue, *parked)])
    assert keys.keys() == known.keys() and not any(count > 1 for count in keys.values()), "nobody is lost or there twice"
    for client in {item.request.scheduling.client for item in queue}:
        own = [item.rank for item in queue if item.request.scheduling.client == client]
        assert all(first < second for first, second in pairwise(own)), "of one client's, who came first is served first"
    assert scheduler.queue.clients == len({item.request.scheduling.client for item in known.values()}), (
        "nobody is remembered who has left"
    )
    assert all(item.overtaken <= MAX_OVERTAKEN for item in queue), "nobody is overtaken for ever"
    assert all(not item.wire_id and not any(item.tables) for item in queue), "who waits holds nothing"
    assert all(not item.wire_id and not any(item.tables) for item in parked), "nor does who gave up its place"
    assert all(item.paused == (item.key in scheduler.paused) for item in known.values())
    assert all(0 <= item.unread <= 2 and item.computed <= item.total for item in running.values())
    check_blocks(scheduler)


def check_blocks(scheduler: Scheduler) -> None:
    """Free blocks, those of known prefixes and those of rows are all blocks, and none is two of these."""
    memory, rows = scheduler.memory, scheduler.shard.rows.values()
    for group, (pool, index) in enumerate(zip(memory.pools.pools, memory.indexes, strict=True)):
        held: Counter[int] = Counter(id(entry) for row in rows for entry in row.entries[group] if entry is not None)
        entries = list(index.entries.values())
        for entry in entries:
            assert entry.holders == held[id(entry)] >= 0, "refcounts are what they count"
            assert (entry.key in index.unheld) == (entry.holders == 0)
        own = [block for row in rows for block in own_blocks(row.tables[group], row.entries[group])]
        blocks = Counter([*pool.free_ids, *(entry.block for entry in entries), *own])
        assert blocks == Counter(range(1, pool.num_blocks + 1)), "free + used = total, each once"
        for row in rows:
            check_table(row, group, scheduler)


def own_blocks(table: list[int], entries: list[Entry | None]) -> list[int]:
    """The blocks of a row that no prefix entry owns."""
    return [
        block for place, block in enumerate(table) if block != NULL_BLOCK and (place >= len(entries) or entries[place] is None)
    ]


def check_table(row: Sequence, group: int, scheduler: Scheduler) -> None:
    """All positions that launched steps compute have a place in a row's table, all that its next step sees have a block, and a window
    has no more blocks than it ever needs."""
    capacity = scheduler._capacity
    cache, table = capacity.groups[group], row.tables[group]
    if cache.kind in (CacheKind.FULL, CacheKind.WINDOW):
        assert len(table) * cache.block_size >= row.computed
    assert NULL_BLOCK not in table[cache.unseen(row.computed - len(row.drafts)) :]
    if cache.kind is CacheKind.WINDOW:
        held = len(table) - table.count(NULL_BLOCK)
        assert held <= most_window_blocks(cache, capacity.max_step_tokens)


def check_shard(one: Device) -> None:
    """The shard keeps text and batches only of those that are there, or that it has not been told of."""
    told = set(one.scheduler.shard.rows) | one.scheduler.shard.removed
    assert set(one.server.transcripts) <= told
    members = [id for batch in one.server.batches.values() for id in batch.members]
    assert len(members) == len(set(members)), "no row is in two batches"
    assert set(members) <= told


def check_empty(one: Device) -> None:
    """All is over: nothing is held anywhere."""
    check_books(one.scheduler)
    snapshot, server = one.scheduler.snapshot, one.server
    assert (snapshot.queued, snapshot.running, snapshot.blocks_free) == (0, 0, snapshot.blocks_total)
    assert not (server.transcripts or server.batches or server.steps)
    assert one.session.idle
