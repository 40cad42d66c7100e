"""A request with an adapter can be continued from its tokens wherever its shard runs now, as recovery from a lost shard does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tgi_conformance.clause import clause
from tgi_conformance.clauses.lora import adapted_transcripts, case_request, open_adapted
from tgi_conformance.golden import Case
from tgi_conformance.scenario import Scene
from tgi_conformance.scenario_steps import Stage
from tgi_conformance.verdict import Level, Violation
from tgi_core.backend import Feature, Grant, Request, Row, Unsupported

_DTYPES = ("float32", "bfloat16", "float16")
_MADE = 9
_POINTS = (1, 3, 6)
"""Tokens generated in all, and after how many of them a request is continued."""


@clause(
    "lora.continue",
    "A request continued from its tokens goes on under its adapter as if it had never stopped, whatever else is in the batch.",
    Level.L2,
    needs=("lora",),
    situations=("several rows share a step", "rows are continued from their tokens"),
    rows=2,
)
def continued(scene: Scene) -> None:
    """Run rows of every adapter and of none alone, then continue them together, in one piece and in chunks of three and eight
    tokens.

    Chunks need chunked_prefill. Where batch invariance is declared, all numbers must be the same bits, in every dtype that opens.
    """
    for dtype, stage in _stages(scene):
        cases = _company(scene, stage, dtype == "float32")
        alone = [_run(stage, [case_request(stage, case, want=stage.wants)], 0, None)[0] for case in cases]
        chunks = (None, 3, 8) if stage.has(Feature.CHUNKED_PREFILL) else (None,)
        for done in _POINTS:
            for chunk in chunks:
                going = [
                    (case, rows) for case, rows in zip(cases, alone, strict=True) if _made(rows)[:done] == case.tokens[:done]
                ]
                scene.situations["rows are continued from their tokens"] += len(going) > 1
                _continue(stage, going, done, chunk)


def _stages(scene: Scene) -> Iterator[tuple[str, Stage]]:
    """Yield stages in the run's dtype, judged by its transcripts, and in other dtypes that declare batch invariance."""
    for dtype in dict.fromkeys((scene.target.dtype, *_DTYPES)):
        try:
            stage = open_adapted(scene, dtype)
        except Unsupported:
            continue
        if dtype == scene.target.dtype or stage.has(Feature.BATCH_INVARIANT):
            yield dtype, stage


def _company(scene: Scene, stage: Stage, exact: bool) -> list[Case]:
    """Return as many cases as can start in one step when continued: two adapters on a long prompt, then a short one without and
    with each."""
    drawn = exact and stage.capabilities.determinism.value == "core"  # the transcripts' draws were made in float32
    kinds = ("greedy", "adapted-greedy", "adapted-sampled")[: 2 + drawn]
    golden = adapted_transcripts(scene)
    found = {(case.prompt, case.adapter): case for case in golden.cases if case.id.startswith(kinds)}
    short = next(iter(found))[0]
    long, names = max((prompt for prompt, _ in found), key=len), [adapter.name for adapter in golden.adapters]
    cases = [found[long, name] for name in names[:2]] + [found[short, name] for name in (None, *names)]
    left, room = stage.capacity.max_step_tokens, stage.capacity.max_rows
    going = []
    for case in cases[:room]:
        left -= len(case.prompt) + _POINTS[-1]
        if left >= 0:
            going.append(case)
    return going


def _continue(stage: Stage, going: Sequence[tuple[Case, list[Row]]], done: int, chunk: int | None) -> None:
    """Continue all rows from the same point. Raises Violation if any number differs from a row's own run."""
    requests = []
    for case, _ in going:
        tokens = len(case.prompt) + done
        requests.append(case_request(stage, case, min(chunk or tokens, tokens), stage.wants, done))
    found = _run(stage, requests, done, chunk)
    if not stage.has(Feature.BATCH_INVARIANT):
        return  # the golden transcripts already judged them
    for (case, whole), rows in zip(going, found, strict=True):
        for mine, other in zip(_numbers(rows), _numbers(whole)[done:], strict=True):
            if mine != other:
                raise Violation(
                    "bits", f"{case.id}: continued after {done} tokens it makes {mine}, in one run {other}: the bits differ"
                )


def _run(stage: Stage, requests: Sequence[Request], done: int, chunk: int | None) -> list[list[Row]]:
    """Run the requests until each has generated its tokens, and return their results; prompts advance in every step with room."""
    batch = stage.start(*requests)
    ids = [request.id for request in requests]
    while any(len(stage.play.tokens(id)) < _MADE - done for id in ids):
        going = [_next(stage, id, _MADE - done, chunk) for id in ids]
        late = [grant for grant in going if grant.take > 1][stage.capacity.max_prefill_rows :]
        batch = stage.decode(batch, grants=[replace(grant, take=0) if grant in late else grant for grant in going])
    stage.filter(batch, ())
    return [stage.play.results[id] for id in ids]


def _next(stage: Stage, id: int, wanted: int, chunk: int | None) -> Grant:
    row = stage.row(id)
    if row.owed:
        return stage.grant(row, min(chunk or row.owed, row.owed))
    return stage.grant(row, int(len(stage.play.tokens(id)) < wanted))


def _made(rows: Sequence[Row]) -> tuple[int, ...]:
    return tuple(token for row in rows for token in row.tokens)


def _numbers(rows: Sequence[Row]) -> list[object]:
    """Return everything reported about each token."""
    return [(row.tokens, row.logprobs, row.top) for row in rows if row.tokens]
