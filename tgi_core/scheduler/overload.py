"""When a request is refused because too many wait."""

from __future__ import annotations

from tgi_core.scheduler.queue import WaitingQueue
from tgi_core.scheduler.step_times import Throughput
from tgi_core.scheduler.types import Overloaded, SchedulerOptions


def overload(queue: WaitingQueue, tokens: int, options: SchedulerOptions, rate: Throughput) -> Overloaded | None:
    """Return why another prompt of `tokens` tokens does not fit into the queue, with the time that the queue takes; None if it
    fits."""
    most_requests, most_tokens = options.max_queued_requests, options.max_queued_tokens
    waiting = queue.tokens
    if most_requests is not None and len(queue) >= most_requests:
        return Overloaded(f"{len(queue)} requests wait, as many as may", rate.seconds_for(waiting))
    if most_tokens is not None and queue and waiting + tokens > most_tokens:
        return Overloaded(f"prompts of {waiting} tokens wait; at most {most_tokens} may", rate.seconds_for(waiting))
    return None
