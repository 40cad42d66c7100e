"""The situations that calls reach, by the names under which clauses ask for them."""

from __future__ import annotations

from tgi_conformance.calls import Call, Clear, Decode, Filter, Prefill, Read, references
from tgi_conformance.oracle import Expected, Oracle


def reached(oracle: Oracle, call: Call, expected: Expected) -> list[str]:
    """Names of the situations that an accepted call reaches; the oracle is as it was before the call."""
    named = set(references(call))
    others = any(ref not in named for ref in oracle.batches)
    drafting = {bool(part.drafts) for part in expected.parts}
    found = {"another batch lives": others, "an earlier step is unread": bool(oracle.steps) and not isinstance(call, Read)}
    match call:
        case Prefill():
            found |= {
                "rows join a batch": call.cached != 0,
                "rows join beside drafts": True in drafting,
                "a prefix is reused": any(request.cached for request in call.batch),
                "a prompt has images": any(request.media for request in call.batch),
                "a prompt begins in part": any(request.cached + request.take < len(request.tokens) for request in call.batch),
                "several requests start together": len(call.batch) > 1,
                "several rows share a step": len(expected.parts) > 1,
                "sampling differs within a batch": len({request.sampling for request in call.batch}) > 1,
            }
        case Decode():
            found |= {
                "batches merge": len(call.batches) > 1,
                "several rows share a step": len(expected.parts) > 1,
                "a row sits out": len(expected.parts) < len(expected.rows),
                "a row runs drafts": True in drafting,
                "rows with and without drafts share a step": len(drafting) > 1,
                "a row grows by a block": any(any(grant.blocks) for grant in call.grants),
                "a prompt goes on": any(part.row.owed for part in expected.parts),
                "a batch goes on beside others": others,
                "a step is launched ahead": bool(oracle.steps),
            }
        case Filter():
            leaves = len(oracle.batches.get(call.batch, ())) - len(expected.rows)
            found |= {"a row leaves": leaves > 0, "a batch is filtered beside others": others, "filter keeps all": leaves == 0}
        case Clear():
            found |= {
                "everything is cleared": call.batch is None,
                "a step is given up": call.batch is None and bool(oracle.steps),
                "a batch is cleared beside others": call.batch is not None and others,
            }
        case Read():
            found["a late row is ignored"] = any(not part.row.live for part in expected.parts)
    return [name for name, there in found.items() if there]
