"""Routes for cloud containers: SageMaker's /invocations, and Vertex AI's, at paths that the environment sets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tgi_core.errors import StartupError
from tgi_core.scheduler.types import SchedulingParams
from tgi_router.answers import GenerateResponse, NativeEvents, VertexResponse
from tgi_router.bodies import CompatGenerateBody, GenerateBody
from tgi_router.cloud_bodies import VertexBody
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import FAILED, UNREADABLE, Endpoint, Handler
from tgi_router.errors import BatchSizeExceeded, BodyRejected, NoInstances, RouterError
from tgi_router.extract import body_bytes, read_body, read_json, validate, validate_json
from tgi_router.inference import Inference
from tgi_router.json_text import dumps
from tgi_router.native import NativeRoutes
from tgi_router.openai_answers import ChatCompletion, ChatEvents, CompletionEvents, CompletionFinal
from tgi_router.openai_bodies import ChatBody, CompletionBody
from tgi_router.openai_chat import ChatRoutes
from tgi_router.openai_completions import CompletionRoutes
from tgi_router.request_examples import INVOCATIONS, VERTEX
from tgi_router.validation import NO_EXTRAS, Prompt


class CloudRoutes:
    """Handlers that pass each body on to the routes for its type."""

    def __init__(self, inference: Inference, native: NativeRoutes, chat: ChatRoutes, completions: CompletionRoutes) -> None:
        self._inference = inference
        self._limit = inference.settings.payload_limit
        self._native, self._chat, self._completions = native, chat, completions

    def named_endpoints(self, health: Handler, environment: Mapping[str, str] = os.environ) -> Iterator[Endpoint]:
        """Yield the endpoints at paths that the environment sets. They precede all others: such a path is meant for Vertex."""
        if path := _path(environment, "AIP_PREDICT_ROUTE"):
            yield self._vertex_at(path)
        if path := _path(environment, "AIP_HEALTH_ROUTE"):
            yield Endpoint("GET", path, health, "Probes", errors=(503,), public=True)

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        yield self._vertex_at("/vertex")
        yield Endpoint(
            "POST",
            "/invocations",
            self.invocations,
            "Clouds",
            body=CompatGenerateBody | ChatBody | CompletionBody,
            examples=INVOCATIONS,
            answer=list[GenerateResponse] | ChatCompletion | CompletionFinal,
            events=NativeEvents | ChatEvents | CompletionEvents,
            done=True,
            errors=(*UNREADABLE, *FAILED),
        )

    def _vertex_at(self, path: str) -> Endpoint:
        return Endpoint(
            "POST",
            path,
            self.vertex,
            "Clouds",
            body=VertexBody,
            examples=VERTEX,
            answer=VertexResponse,
            errors=(*UNREADABLE, *FAILED),
        )

    async def invocations(self, request: Request) -> Response:
        """Generate text for Amazon SageMaker.

        A body with `inputs` is handled like `/`, one with `messages` like `/v1/chat/completions`, and one with `prompt` like
        `/v1/completions`. Errors with an HTTP status have TGI's format in all cases.
        """
        value = await read_json(request, self._limit)
        given = value if isinstance(value, dict) else {}
        if "inputs" in given:
            return await self._native.answer(request, await validate_json(request, value, CompatGenerateBody))
        if "messages" in given:
            return await self._chat.answer(request, await validate_json(request, value, ChatBody))
        if "prompt" in given:
            return await self._completions.answer(request, await validate_json(request, value, CompletionBody))
        raise BodyRejected(422, "data did not match any variant of untagged enum SagemakerRequest")

    async def vertex(self, request: Request) -> Response:
        """Generate text for Google Vertex AI.

        Generates one text per instance; each instance is a native request or a chat. Streaming is not supported. If an instance
        fails, the request fails with its error. The environment variable `AIP_PREDICT_ROUTE` adds another path for this operation.
        """
        body = await read_body(request, VertexBody, self._limit)
        if not body.instances:
            raise NoInstances
        largest = self._inference.settings.max_concurrent_requests
        if len(body.instances) > largest:
            raise BatchSizeExceeded(str(largest))
        size, scheduling = body_bytes(request), self._inference.scheduling(request)
        instances = await self._inference.threads.run(size, self._instances, body)
        return await answer_unless_left(request, self._predict(instances, size, scheduling))

    def _instances(self, body: VertexBody) -> list[GenerateBody | ChatBody]:
        return [self._instance(value, body.parameters) for value in body.instances]

    def _instance(self, value: dict[str, Any], defaults: dict[str, Any] | None) -> GenerateBody | ChatBody:
        if "inputs" not in value:
            return validate(value, ChatBody)
        return validate({"parameters": defaults, **value} if defaults is not None else value, GenerateBody)

    async def _predict(self, instances: list[GenerateBody | ChatBody], size: int, scheduling: SchedulingParams) -> Response:
        """Run all instances concurrently, once all are valid. The first failure cancels the others."""
        gate = asyncio.Barrier(len(instances))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._text(instance, size, scheduling, gate)) for instance in instances]
        except* RouterError as errors:
            raise _first(errors) from None
        return Response(dumps({"predictions": [task.result() for task in tasks]}), media_type="application/json")

    async def _text(
        self, instance: GenerateBody | ChatBody, size: int, scheduling: SchedulingParams, gate: asyncio.Barrier
    ) -> str:
        if isinstance(instance, GenerateBody):
            prompt, parameters, extras = Prompt(instance.inputs), instance.parameters, NO_EXTRAS
        else:
            chat = await self._chat.prepare(instance, size)
            prompt, parameters, extras = chat.prompt, chat.parameters, chat.extras
        async with self._inference.call((prompt,), parameters, scheduling, streaming=False, extras=extras, gate=gate) as call:
            return (await call.results())[0].text.text


def _path(environment: Mapping[str, str], name: str) -> str | None:
    path = environment.get(name)
    if path and (not path.startswith("/") or "{" in path):
        raise StartupError(f"{name}={path}: must be a path that begins with /")
    return path


def _first(errors: BaseExceptionGroup[RouterError]) -> RouterError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, RouterError) else RouterError(str(error))
