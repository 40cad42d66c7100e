"""A router of TGI's, which sends none of our fields, on our shard: v3 and v2, call by call."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from tests.grpc.shards import ours, served
from tests.scheduler.device import alone
from tgi_core.backend import OutOfMemory, Sampling
from tgi_core.proto.generate.v2 import generate_pb2 as v2
from tgi_core.proto.generate.v3 import generate_pb2 as v3
from tgi_core.scheduler import GenerationRequest
from tgi_core.tokenizer import Tokenizer
from tgi_core.wire.methods import V2, V3
from tgi_core.wire.types import Stopping

Call = Callable[..., Any]
PROMPTS = ("Once upon a time", "The sea", "Why is the sky blue?")
HEALTH_ID = (1 << 64) - 1


def connected(address: str, pb: ModuleType) -> tuple[grpc.Channel, Call]:
    """A blocking client of one version: `call(method, **fields)`."""
    channel = grpc.insecure_channel(address)
    methods = V3 if pb is v3 else V2

    def call(name: str, **fields: Any) -> Any:
        method = methods[name]
        unary = channel.unary_unary(
            method.path, request_serializer=method.request.SerializeToString, response_deserializer=method.response.FromString
        )
        return unary(method.request(**fields), timeout=60)

    return channel, call


@pytest.fixture(params=[v3, v2], ids=["v3", "v2"])
def pb(request: pytest.FixtureRequest) -> ModuleType:
    """The messages of a version."""
    found: ModuleType = request.param
    return found


@pytest.fixture
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the shard's backend is opened with."""
    return dict(getattr(request, "param", {}))


@pytest.fixture
def call(pb: ModuleType, options: dict[str, Any], demo_tokenizer: Tokenizer, tmp_path: Path) -> Generator[Call, None, None]:
    """A client whose shard is warmed up as TGI's router does it."""
    with served(demo_tokenizer, tmp_path, **options) as server:
        channel, call = connected(server.address, pb)
        call("ServiceDiscovery")
        call("ClearCache")
        call("Warmup", batch=pb.Batch(), max_prefill_tokens=16, max_total_tokens=128)
        yield call
        channel.close()


def wanted(pb: ModuleType, id: int, text: str, max_new_tokens: int = 6, **fields: Any) -> Any:
    """A request as TGI's router sends it when the client gave nothing."""
    parameters = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0, "seed": 7}
    if pb is v3:
        fields = {"add_special_tokens": True, "blocks": [0], "slots": [0]} | fields
    return pb.Request(
        id=id,
        inputs=text,
        truncate=fields.pop("truncate", 100),
        parameters=pb.NextTokenChooserParameters(**(parameters | fields.pop("parameters", {}))),
        stopping_parameters=pb.StoppingCriteriaParameters(
            max_new_tokens=max_new_tokens, ignore_eos_token=True, stop_sequences=fields.pop("stop", ())
        ),
        **fields,
    )


def expected(tokenizer: Tokenizer, text: str, max_new_tokens: int = 6) -> list[int]:
    """What our own scheduler makes of a greedy request, with the device to itself."""
    return alone(
        tokenizer, GenerationRequest.of(tokenizer.encode(text).ids, Sampling(), Stopping(max_new_tokens, ignore_eos=True))
    )


def note(made: dict[int, list[int]], response: Any) -> Any:
    """Collect tokens; the batch that is left."""
    assert not ours(response)
    for generation in response.generations:
        made.setdefault(generation.request_id, []).extend(generation.tokens.ids)
    return response.batch if response.HasField("batch") else None


def batch(pb: ModuleType, id: int, *requests: Any) -> Any:
    """A batch to prefill."""
    return pb.Batch(id=id, requests=requests, size=len(requests))


def test_a_whole_conversation(call: Call, pb: ModuleType, demo_tokenizer: Tokenizer) -> None:
    """Two batches, merged, filtered and run to their ends: every row gets the tokens that it makes alone, and its text."""
    made: dict[int, list[int]] = {}
    first = note(made, call("Prefill", batch=batch(pb, 0, wanted(pb, 1, PROMPTS[0], 3), wanted(pb, 2, PROMPTS[1], 9))))
    assert (first.id, list(first.request_ids), first.size) == (0, [1, 2], 2) and first.max_tokens > 0
    second = note(made, call("Prefill", batch=batch(pb, 1, wanted(pb, 3, PROMPTS[2]), wanted(pb, 4, "gone"))))
    second = call("FilterBatch", batch_id=1, request_ids=[3]).batch
    assert list(second.request_ids) == [3]
    left, texts = note(made, call("Decode", batches=[first, second])), {}
    assert left.id == 0 and set(left.request_ids) == {1, 2, 3}
    while left is not None:
        response = call("Decode", batches=[left])
        texts |= {item.request_id: item.generated_text for item in response.generations if item.HasField("generated_text")}
        left = note(made, response)
    assert made.pop(4) == expected(demo_tokenizer, "gone")[:1]
    assert made == {
        id: expected(demo_tokenizer, text, length) for id, text, length in zip((1, 2, 3), PROMPTS, (3, 9, 6), strict=True)
    }
    assert [texts[id].generated_tokens for id in (1, 2, 3)] == [3, 9, 6] and not texts[1].HasField("seed")
    with pytest.raises(grpc.RpcError, match=r"Batch ID 0 not found in cache\."):
        call("Decode", batches=[first])


def test_prompts_longer_than_a_step(call: Call, pb: ModuleType, demo_tokenizer: Tokenizer) -> None:
    """Prompts that do not fit into a step together, and one that does not fit by itself, are run in several."""
    made: dict[int, list[int]] = {}
    texts = (*PROMPTS, " ".join(PROMPTS) * 2)
    assert len(demo_tokenizer.encode(texts[-1]).ids) > 16
    left = note(made, call("Prefill", batch=batch(pb, 0, *(wanted(pb, id, text) for id, text in enumerate(texts)))))
    while left is not None:
        left = note(made, call("Decode", batches=[left]))
    assert made == {id: expected(demo_tokenizer, text) for id, text in enumerate(texts)}


def test_what_is_asked_for_is_returned(call: Call, pb: ModuleType, demo_tokenizer: Tokenizer) -> None:
    """Prompt logprobs, the first of them NaN; top tokens; the seed of a sampled row; a stop sequence; truncation on the left."""
    ids = demo_tokenizer.encode(PROMPTS[2]).ids
    asked = wanted(pb, 1, PROMPTS[2], 1, prefill_logprobs=True, top_n_tokens=3, truncate=4, parameters={"do_sample": True})
    [generation] = call("Prefill", batch=batch(pb, 5, asked)).generations
    prompt = generation.prefill_tokens
    assert tuple(prompt.ids) == ids[-4:] and math.isnan(prompt.logprobs[0]) and prompt.logprobs[1] < 0
    assert not prompt.is_special and prompt.texts[-1] == demo_tokenizer.decode(ids[-1:])
    [top] = generation.top_tokens
    assert len(top.ids) == len(top.texts) == len(top.is_special) == 3 and top.logprobs[0] >= top.logprobs[2]
    assert generation.generated_text.seed == 7 and generation.generated_text.generated_tokens == 1
    text = demo_tokenizer.decode(expected(demo_tokenizer, PROMPTS[0])[:1])
    stopped = call("Prefill", batch=batch(pb, 6, wanted(pb, 2, PROMPTS[0], stop=[text])))
    assert not stopped.HasField("batch")
    assert stopped.generations[0].generated_text.finish_reason == pb.FINISH_REASON_STOP_SEQUENCE


def test_errors_are_internal_with_their_text(call: Call, pb: ModuleType) -> None:
    """Wrong calls in TGI's words; the shard goes on, and nothing of a refused batch is left."""
    for text, name, fields in (
        ("Must provide at least one batch", "Decode", {}),
        (r"Batch ID 9 not found in cache\.", "Decode", {"batches": [pb.CachedBatch(id=9)]}),
        (r"Batch ID 8 not found in cache\.", "FilterBatch", {"batch_id": 8, "request_ids": [1]}),
        ("128 fit", "Prefill", {"batch": batch(pb, 1, wanted(pb, 1, "a"), wanted(pb, 2, "a", 400))}),
        ("watermark", "Prefill", {"batch": batch(pb, 1, wanted(pb, 1, "a", parameters={"watermark": True}))}),
    ):
        with pytest.raises(grpc.RpcError, match=text) as caught:
            call(name, **fields)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
    call("Prefill", batch=batch(pb, 1, wanted(pb, 1, "a")))
    with pytest.raises(grpc.RpcError, match="Batch must have at least one request"):
        call("FilterBatch", batch_id=1, request_ids=[])
    with pytest.raises(grpc.RpcError, match=r"has no request 5\."):
        call("FilterBatch", batch_id=1, request_ids=[5])
    call("ClearCache", id=1)
    call("ClearCache", id=1)
    call("Health")


@pytest.mark.parametrize("options", [{"faults": {2: OutOfMemory("no room on the device")}}], indirect=True)
def test_a_step_that_fails(call: Call, pb: ModuleType, demo_tokenizer: Tokenizer) -> None:
    """The router gets the backend's text and its batches are gone; what it starts then is served."""
    left = call("Prefill", batch=batch(pb, 1, wanted(pb, 1, "a"))).batch
    with pytest.raises(grpc.RpcError, match="no room on the device"):
        call("Decode", batches=[left])
    with pytest.raises(grpc.RpcError, match="not found in cache"):
        call("Decode", batches=[left])
    [generation] = call("Prefill", batch=batch(pb, 2, wanted(pb, 2, PROMPTS[0]))).generations
    assert list(generation.tokens.ids) == expected(demo_tokenizer, PROMPTS[0])[:1]


@pytest.mark.parametrize("pb", [v3], indirect=True, ids=["v3"])
def test_the_deep_health_check(call: Call, pb: ModuleType) -> None:
    """The router's health check, on block 0 and beside a running batch, makes its one token and leaves nothing."""
    running = call("Prefill", batch=batch(pb, 1, wanted(pb, 1, "a"))).batch
    asked = wanted(pb, HEALTH_ID, "liveness", 1, truncate=1, add_special_tokens=False)
    response = call("Prefill", batch=batch(pb, HEALTH_ID, asked))
    assert len(response.generations) == 1 and not response.HasField("batch")
    assert call("Decode", batches=[running]).HasField("batch")


@pytest.mark.parametrize("pb", [v3], indirect=True, ids=["v3"])
def test_chunks_of_input_and_a_batch_to_join(call: Call, pb: ModuleType, demo_tokenizer: Tokenizer) -> None:
    """Text chunks go before `inputs` and images are dropped; a prefill that names a running batch runs its rows too."""
    made: dict[int, list[int]] = {}
    left = note(made, call("Prefill", batch=batch(pb, 1, wanted(pb, 1, PROMPTS[0]))))
    chunks = [pb.InputChunk(text="The "), pb.InputChunk(image=pb.Image(data=b"x")), pb.InputChunk(text="sea")]
    asked = wanted(pb, 2, "not this", input_chunks=pb.Input(chunks=chunks))
    left = note(made, call("Prefill", batch=batch(pb, 2, asked), cached_batch=left))
    assert left.id == 1 and set(left.request_ids) == {1, 2} and [len(ids) for ids in made.values()] == [2, 1]
    while left is not None:
        left = note(made, call("Decode", batches=[left]))
    assert made == {1: expected(demo_tokenizer, PROMPTS[0]), 2: expected(demo_tokenizer, "The sea")}


def test_the_blocks_come_back(call: Call, pb: ModuleType) -> None:
    """Requests that reserve most of the cache follow one another for ever, whether they end, are filtered or cleared."""
    for round in range(0, 90, 3):
        rows = [wanted(pb, round * 100 + index, "a", 120) for index in range(30)]
        left = call("Prefill", batch=batch(pb, round, *rows)).batch
        kept = call("FilterBatch", batch_id=round, request_ids=list(left.request_ids)[:2]).batch
        assert kept.size == 2
        call("ClearCache", id=round)
    with pytest.raises(grpc.RpcError, match="exceed max_rows"):
        call("Prefill", batch=batch(pb, 1000, *(wanted(pb, index, "a") for index in range(200))))
    assert call("Prefill", batch=batch(pb, 1001, wanted(pb, 1, "a"))).HasField("batch")
