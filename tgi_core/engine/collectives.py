"""Collective operations of the ranks of a model: all-reduce, all-gather, minimum, broadcast, barrier.

They use torch.distributed's public interface, so a device package only names a backend ("nccl"). A collective that fails or times out
means that another rank is gone: it raises PeerLost, and this rank's session is over.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Protocol

import psutil
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _set_pg_timeout

from tgi_core.backend import BackendError, Group, PeerLost

STEP_S = 60
"""Seconds that a rank waits for the others in the middle of a step."""

LOADING_S = 3600
"""Seconds that a rank waits for one that is still loading weights or compiling; the server notices a rank that ends in the meantime."""

POLL_S = 50e-6
"""Seconds between a rank's checks whether its device is done."""

_INTERFACE = "GLOO_SOCKET_IFNAME"

FILE = "file:"
"""Prefix of a rendezvous that is a file in a private folder, for ranks of one machine."""


class Reachable(Protocol):
    """An event in a device's stream, as in torch's device modules."""

    def query(self) -> bool:
        """Whether the device has reached it."""


class DeviceEvent(Reachable, Protocol):
    """An event that is recorded in the current stream."""

    def record(self) -> None:
        """Record it at the stream's current end."""


def reached(event: Reachable, patience_s: float) -> bool:
    """Wait until the device has reached an event, but no longer than that; whether it has."""
    deadline = time.monotonic() + patience_s
    while not event.query():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


class Collectives:
    """A group of ranks, as one of them sees it. Every rank makes the same calls in the same order."""

    def __init__(
        self, rank: int, world: int, store: Store, device: torch.device, new_event: Callable[[], DeviceEvent] | None = None
    ) -> None:
        """`new_event` makes an event of a device that runs collectives after their calls have returned; None for one that does not."""
        self.rank, self.world = rank, world
        self._store, self._device, self._new_event = store, device, new_event
        self._meetings = 0
        self._patience_s = LOADING_S

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone samples."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """torch's name of the group, for operators that compilers trace."""
        world = dist.group.WORLD
        if world is None:
            raise PeerLost("this rank has left its group")
        return world.group_name

    def reduce(self, tensor: Tensor) -> Tensor:
        """All-reduce: the sum over the ranks, with the same bits on each; in place if `tensor` is contiguous."""
        tensor = tensor.contiguous()
        with _peers(self._patience_s):
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """All-gather: the ranks' tensors concatenated in the last dimension, where rank r has size `sizes[r]`."""
        widest = max(sizes)
        padded = F.pad(tensor, (0, widest - tensor.shape[-1])).contiguous()
        parts = [torch.empty_like(padded) for _ in sizes]
        with _peers(self._patience_s):
            dist.all_gather(parts, padded)
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes, strict=True)], dim=-1)

    def least(self, value: int) -> int:
        """The minimum of the ranks' values."""
        found = torch.tensor([value], dtype=torch.int64, device=self._device)
        with _peers(self._patience_s):
            dist.all_reduce(found, op=dist.ReduceOp.MIN)
        self.settle()
        return int(found.item())

    def tell(self, values: Sequence[int]) -> list[int]:
        """Broadcast: rank 0's values, on every rank; the others pass a list of the same length."""
        told = torch.tensor(values, dtype=torch.int64, device=self._device)
        with _peers(self._patience_s):
            dist.broadcast(told, src=0)
        self.settle()
        return told.tolist()

    def share(self, data: bytes, size: int) -> bytes:
        """Broadcast: rank 0's bytes, `size` of them, or none on any rank if it has not that many; the others pass anything."""
        if not self.tell([int(self.leads and len(data) == size)])[0]:
            return b""
        shared = torch.frombuffer(bytearray(data if self.leads else size), dtype=torch.uint8).to(self._device)
        with _peers(self._patience_s):
            dist.broadcast(shared, src=0)
        self.settle()
        return shared.cpu().numpy().tobytes()

    def settle(self) -> None:
        """Wait until the device has run everything enqueued so far, as reading from it would, but no longer than other ranks may need: a
        collective that misses a rank runs forever, and nothing can end a read that waits for it. Raises PeerLost."""
        if self._new_event is None:
            return
        event = self._new_event()
        event.record()
        if not reached(event, self._patience_s):
            raise PeerLost(f"another rank is gone, or needs more than {self._patience_s} s for its part of a step")

    def meet(self) -> None:
        """Barrier: wait until all ranks have reached this point in loading, without using the device."""
        self._meetings += 1
        with _peers(self._patience_s):
            self._store.set(f"meeting-{self._meetings}-{self.rank}", "here")
            names = [f"meeting-{self._meetings}-{rank}" for rank in range(self.world)]
            self._store.wait(names, timedelta(seconds=LOADING_S))

    def start_serving(self) -> None:
        """End of warm-up: from now on the ranks run at one pace, and one that needs more than `STEP_S` for its part of a step is lost.

        Until then, each compiles at its own pace. Devices for whose backend torch cannot change the timeout keep `LOADING_S`.
        """
        self._patience_s = STEP_S
        # Where `settle` watches, torch's own watchdog must come later: it can only abort, and this rank still has to say why.
        limit = STEP_S if self._new_event is None else 2 * STEP_S
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            _set_pg_timeout(timedelta(seconds=limit))

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _peers(patience_s: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's DistError is one
        reason = " ".join(str(error).split())[:200]
        raise PeerLost(f"another rank is gone, or needs more than {patience_s} s for its part of a step: {reason}") from error


def open_collectives(group: Group, backend: str, device: torch.device) -> Collectives:
    """Connect to the other ranks at the group's rendezvous. `backend` is torch.distributed's name. Raises PeerLost."""
    with _peers(LOADING_S):
        store = _store(group)
        with _interface(group) if backend == "gloo" else nullcontext():
            dist.init_process_group(
                backend, store=store, rank=group.rank, world_size=group.world, timeout=timedelta(seconds=LOADING_S)
            )
    found = Collectives(group.rank, group.world, store, device, _events(device))
    try:
        found.meet()
    except BackendError:
        found.close()
        raise
    return found


def _events(device: torch.device) -> Callable[[], DeviceEvent] | None:
    """A function that makes events of a device; None unless it runs asynchronously and torch has a module with events for its kind."""
    return None if device.type == "cpu" else getattr(getattr(torch, device.type, None), "Event", None)


def _store(group: Group) -> Store:
    if group.rendezvous.startswith(FILE):
        return FileStore(group.rendezvous.removeprefix(FILE), group.world)
    host, _, port = group.rendezvous.rpartition(":")
    # torchrun has its own store at this address.
    hosting = group.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    waiting = timedelta(seconds=LOADING_S)
    store = TCPStore(host.strip("[]"), int(port), group.world, hosting, waiting, wait_for_workers=False)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"tgi-{attempt}", store)


@contextmanager
def _interface(group: Group) -> Iterator[None]:
    """Have gloo connect over the loopback interface if all ranks are on this machine, else over the interface that leads to rank 0, unless
    the operator names one. By itself gloo takes the address of the machine's name, which often is one of the loopback."""
    name = _loopback() if group.local_world >= group.world else _interface_to(group.rendezvous)
    if name is None or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = name
    try:
        yield
    finally:
        del os.environ[_INTERFACE]  # other groups, and processes that this one starts, choose for themselves


def _loopback() -> str | None:
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def _interface_to(rendezvous: str) -> str | None:
    """Return the interface from which this machine reaches rank 0's address; None if none has the address that it would send from."""
    host, _, port = rendezvous.rpartition(":")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # only looks the route up: nothing is sent
            own = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == own for each in addresses):
            return name
    return None
