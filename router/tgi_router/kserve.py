"""KServe's Open Inference Protocol, version 2: the subset that TGI implements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from tgi_core import __version__
from tgi_core.scheduler.types import SchedulingParams
from tgi_router.answers import InferResponse, Live, Metadata
from tgi_router.cloud_bodies import InferBody, InferInput
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import FAILED, UNREADABLE, Endpoint
from tgi_router.errors import BatchSizeExceeded, LengthMismatch, NotUtf8, Unhealthy
from tgi_router.extract import read_body
from tgi_router.inference import Inference, in_order
from tgi_router.json_text import dumps
from tgi_router.probes import Probes
from tgi_router.request_examples import INFER
from tgi_router.validation import Prompt

_VERSION = "/v2/models/{model}/versions/{version}"


class KServeRoutes:
    """Handlers of /v2. The model name in a path is ignored, as in TGI: the served model responds."""

    def __init__(self, inference: Inference, probes: Probes) -> None:
        self._inference = inference
        self._probes = probes

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/{model}/ready", f"{_VERSION}/ready"):
            yield Endpoint("GET", path, self.ready, "KServe", answer=Live, errors=(503,), public=True)
        yield Endpoint("GET", "/v2", self.server, "KServe", answer=Metadata)
        for path in ("/v2/models/{model}", _VERSION):
            yield Endpoint("GET", path, self.model, "KServe", answer=Metadata)
            errors = (*UNREADABLE, *FAILED)
            yield Endpoint(
                "POST", f"{path}/infer", self.infer, "KServe", body=InferBody, examples=INFER, answer=InferResponse, errors=errors
            )

    async def ready(self, request: Request) -> Response:
        """Check readiness.

        Responds with status 200 if the server can generate, else with 503. Requires no API key.
        """
        if not await self._probes.ready():
            raise Unhealthy
        return _json({"live": True})

    async def server(self, request: Request) -> Response:
        """Describe the server.

        Returns its name, its version and the protocol extensions that it supports.
        """
        extensions = ["health", "models", "metrics"]
        return _json({"name": "text-generation-inference", "version": __version__, "extensions": extensions})

    async def model(self, request: Request) -> Response:
        """Describe the model.

        Returns the name and version from the path. Any name is accepted and selects the served model.
        """
        name, version = request.path_params["model"], request.path_params.get("version", "1")
        return _json({"name": name, "version": version, "extensions": ["infer", "ready"]})

    async def infer(self, request: Request) -> Response:
        """Run inference.

        Generates one text per input. An input of strings yields a string, an input of bytes (as numbers) yields bytes (as numbers).
        The number of `outputs` must equal the number of `inputs`.
        """
        body = await read_body(request, InferBody, self._inference.settings.payload_limit)
        largest = self._inference.settings.max_client_batch_size
        if len(body.inputs) != len(body.outputs):
            raise LengthMismatch
        if len(body.inputs) > largest:
            raise BatchSizeExceeded(str(largest))
        prompts = tuple(Prompt(_text(given)) for given in body.inputs)
        return await answer_unless_left(request, self._infer(body, prompts, self._inference.scheduling(request)))

    async def _infer(self, body: InferBody, prompts: tuple[Prompt, ...], scheduling: SchedulingParams) -> Response:
        texts: list[str] = []
        if prompts:
            async with self._inference.call(prompts, body.parameters, scheduling, streaming=False) as call:
                results = [result for result in in_order(await call.results()) if result.choice.sample == 0]
            texts = [result.text.text for result in results]
        outputs = []
        for given, wanted, text in zip(body.inputs, body.outputs, texts, strict=True):
            data = [text] if _is_text(given) else list(text.encode())
            outputs.append({"name": wanted.name, "shape": [1, len(data)], "datatype": "BYTES", "data": data})
        return _json({"id": body.id, "outputs": outputs})


def _is_text(given: InferInput) -> bool:
    return bool(given.data) and isinstance(given.data[0], str)


def _text(given: InferInput) -> str:
    if _is_text(given):
        return "".join(str(part) for part in given.data)
    try:
        return bytes(cast(list[int], given.data)).decode()
    except UnicodeDecodeError as error:
        raise NotUtf8(str(error)) from error


def _json(value: object) -> Response:
    return Response(dumps(value), media_type="application/json")
