"""Nothing is lost on the wire: every value comes back as it was, through bytes."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given

from tests.grpc import values
from tgi_core.backend import (
    SAMPLING,
    Capabilities,
    Capacity,
    Determinism,
    Grant,
    Kernel,
    Mixing,
    OutputOptions,
    Request,
    RowFault,
    Sampling,
    Scope,
    WarmupPlan,
)
from tgi_core.proto import contract_pb2 as contract
from tgi_core.proto.generate.v3 import generate_pb2 as pb
from tgi_core.wire import types
from tgi_core.wire.describing import (
    decode_capacity,
    decode_health,
    decode_info,
    decode_plan,
    encode_capacity,
    encode_health,
    encode_info,
    encode_plan,
)
from tgi_core.wire.health import ShardHealth
from tgi_core.wire.results import decode_result, encode_result
from tgi_core.wire.turns import decode_turn, encode_turn
from tgi_core.wire.types import Generation, ShardInfo, StepResult, Token, Turn, TurnResult

FIELDS = {
    types.Turn: 3,
    types.Prefill: 4,
    types.Decode: 3,
    types.Filter: 2,
    types.Clear: 1,
    types.ShardRequest: 4,
    types.Stopping: 5,
    types.TurnResult: 3,
    types.VerbCall: 3,
    types.StepResult: 8,
    types.Fault: 5,
    types.Generation: 5,
    types.Token: 5,
    types.Candidate: 4,
    types.PromptToken: 3,
    types.GeneratedText: 3,
    types.ShardInfo: 6,
    Request: 11,
    Sampling: len(SAMPLING),
    OutputOptions: 3,
    Grant: 5,
    RowFault: 2,
    Capabilities: 14,
    Kernel: 3,
    Capacity: 10,
    WarmupPlan: 8,
    ShardHealth: 5,
}
"""How many fields of each type the codec carries; `StepResult.unusual` says no more than the others do, `Request.masked` no more than the
grammar; `Request.media` is not supported yet."""


def test_the_codec_knows_every_field() -> None:
    """A field that is added to a value that crosses the wire has to be added to the codec, its strategies and this list."""
    assert {kind: len(dataclasses.fields(kind)) for kind in FIELDS} == FIELDS


@given(values.turns)
def test_turns(turn: Turn) -> None:
    """What the scheduler says, with a client's lone surrogates and numbers in double precision."""
    assert decode_turn(pb.Turn.FromString(encode_turn(turn).SerializeToString())) == turn


@given(values.results)
def test_results(result: TurnResult) -> None:
    """What the shard answers."""
    assert decode_result(pb.TurnResult.FromString(encode_result(result).SerializeToString()), 1 << 32) == result


@given(values.infos)
def test_infos(info: ShardInfo) -> None:
    """What the shard is."""
    assert decode_info(pb.InfoResponse.FromString(encode_info(info).SerializeToString())) == info


@given(values.plans)
def test_plans(plan: WarmupPlan) -> None:
    """What the router wishes; a limit of 0 is not one of None."""
    assert decode_plan(contract.WarmupPlan.FromString(encode_plan(plan).SerializeToString())) == plan


@given(values.capacities)
def test_capacities(capacity: Capacity) -> None:
    """What the shard promises."""
    assert decode_capacity(contract.Capacity.FromString(encode_capacity(capacity).SerializeToString())) == capacity


@given(values.healths)
def test_healths(health: ShardHealth) -> None:
    """How the shard is."""
    assert decode_health(pb.HealthResponse.FromString(encode_health(health).SerializeToString())) == health


def test_a_missing_logprob_stays_missing() -> None:
    """A backend without logprobs yields NaN, which arrives as NaN."""
    made = TurnResult(result=StepResult(1, (Generation(1, (Token(1, "a", math.nan, False),)),)))
    result = decode_result(encode_result(made), 1 << 32).result
    assert result is not None and math.isnan(result.generations[0].tokens[0].logprob)


def test_a_newer_shard_is_understood() -> None:
    """Words that this version does not know promise nothing; an unknown scope of a fault reaches as far as can be."""
    newer = contract.Capabilities(features=["telepathy", "masks"], sampling=["mirostat"], mixing="cocktail", determinism="?")
    info = decode_info(pb.InfoResponse(capabilities=newer))
    assert [feature.value for feature in info.capabilities.features] == ["masks"] and not info.capabilities.sampling
    assert (info.capabilities.mixing, info.capabilities.determinism) == (Mixing.NONE, Determinism.NONE)
    fault = decode_result(pb.TurnResult(refused=contract.Fault(scope="galaxy")), 1 << 32).refused
    assert fault is not None and fault.scope is Scope.SESSION


@pytest.mark.parametrize(
    "message",
    [
        pb.TurnResult(result=contract.StepResult(request_ids=[1, 2], token_counts=[1], ids=[1], texts=["a"], logprobs=[0])),
        pb.TurnResult(result=contract.StepResult(request_ids=[1], ids=[1], texts=[], logprobs=[0])),
        pb.TurnResult(result=contract.StepResult(prompts=[contract.Prompt(ids=[1, 2], texts=["a", "b"], logprobs=[0])])),
    ],
)
def test_columns_that_do_not_fit_are_an_error(message: pb.TurnResult) -> None:
    """A result whose columns differ in length raises ValueError; it is never read askew."""
    with pytest.raises(ValueError, match=r"zip\(\)|fewer|counts"):
        decode_result(message, 1 << 32)


def test_a_turn_without_meaning_is_an_error() -> None:
    """Bookkeeping that this version does not know is not passed over."""
    with pytest.raises(ValueError, match="does not know"):
        decode_turn(pb.Turn(bookkeeping=[pb.Bookkeeping()]))


def test_forced_tokens_are_in_the_vocabulary() -> None:
    """They become drafts, of which a token that the model does not have would fail the whole step."""
    message = pb.TurnResult(result=contract.StepResult(forced=[contract.Forced(request_id=1, ids=[7, 8])]))
    assert decode_result(message, 9).result == StepResult(0, forced={1: (7, 8)})
    with pytest.raises(ValueError, match="forced token 8 of a vocabulary of 8"):
        decode_result(message, 8)


def test_proposed_tokens_are_in_the_vocabulary() -> None:
    """So are a backend's guesses, which belong to the rows in their order."""
    columns = {"request_ids": [1, 2, 3], "token_counts": [0, 0, 0], "proposed_counts": [2, 0, 1], "proposed": [7, 8, 5]}
    message = pb.TurnResult(result=contract.StepResult(**columns))
    found = decode_result(message, 9).result
    assert found is not None and found.proposed == {1: (7, 8), 3: (5,)}
    with pytest.raises(ValueError, match="proposed token 8 of a vocabulary of 8"):
        decode_result(message, 8)
    message.result.proposed_counts[2] = 2
    with pytest.raises(ValueError, match="3 proposed tokens, where it counts 4 in 3 rows"):
        decode_result(message, 9)
