"""Routes that do not generate: info, models, metrics, tokenize."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tgi_core import __version__
from tgi_core.scheduler.events import ReplicaState
from tgi_router.answers import Info, SimpleToken
from tgi_router.bodies import GenerateBody
from tgi_router.disconnect import answer_unless_left
from tgi_router.endpoints import UNREADABLE, Endpoint
from tgi_router.errors import NO_MODEL, NoModel
from tgi_router.exposition import CONTENT_TYPE
from tgi_router.extract import read_body
from tgi_router.inference import Inference
from tgi_router.json_text import dumps
from tgi_router.openai_answers import ModelInfo, ModelsInfo
from tgi_router.request_examples import TOKENIZE


class SmallRoutes:
    """Handlers of server information and of tokenization."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._models = _models(inference)

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint("GET", "/info", self.info, "Server", answer=Info),
            Endpoint("GET", "/v1/models", self.models, "OpenAI", answer=ModelsInfo),
            Endpoint("GET", "/v1/models/{id:path}", self.model, "OpenAI", answer=ModelInfo, errors=(404,)),
            Endpoint("GET", "/metrics", self.metrics, "Server", text="text/plain"),
            Endpoint(
                "POST",
                "/tokenize",
                self.tokenize,
                "Tokens",
                body=GenerateBody,
                examples=TOKENIZE,
                answer=list[SimpleToken],
                errors=(*UNREADABLE, 429),
            ),
        ]

    async def info(self, request: Request) -> Response:
        """Get information about the server.

        Returns the served model, the limits for requests, and the kernels in use.
        """
        return Response(dumps(_info(self._inference)), media_type="application/json")

    async def models(self, request: Request) -> Response:
        """List the available models.

        Returns the served model and its LoRA adapters. Their names are valid values of the field `model`.
        """
        return Response(dumps(self._models), media_type="application/json")

    async def model(self, request: Request) -> Response:
        """Get one of the available models.

        Returns the served model or one of its LoRA adapters. Its name may contain slashes.
        """
        name = request.path_params["id"]
        for each in self._models["data"]:
            if each["id"] == name:
                return Response(dumps(each), media_type="application/json")
        raise NoModel(NO_MODEL)

    async def metrics(self, request: Request) -> Response:
        """Get the metrics.

        Returns the metrics in Prometheus' text format, under TGI's names where TGI has them; docs/observability.md lists them all.
        """
        return Response(self._inference.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def tokenize(self, request: Request) -> Response:
        """Tokenize text.

        Returns each token of `inputs` with its range of bytes. Nothing is generated, and `parameters` are ignored.
        """
        body = await read_body(request, GenerateBody, self._inference.settings.payload_limit)
        return await answer_unless_left(request, self._tokens(body.inputs))

    async def _tokens(self, text: str) -> Response:
        return Response(await self._inference.tokenizing.tokens(text), media_type="application/json")


def _info(inference: Inference) -> dict[str, object]:
    settings, model, limits, load = inference.settings, inference.model, inference.limits, inference.generator.snapshot()
    adapters = list(inference.generator.info.capabilities.adapters)
    return {
        "model_id": model.name,
        "model_sha": model.revision,
        "model_pipeline_tag": "text2text-generation" if model.is_encoder_decoder else None,
        "max_concurrent_requests": settings.max_concurrent_requests,
        "max_best_of": settings.max_best_of,
        "max_stop_sequences": settings.max_stop_sequences,
        "max_input_tokens": limits.max_input_tokens,
        "max_total_tokens": limits.max_total_tokens,
        "validation_workers": settings.validation_workers,
        "max_client_batch_size": settings.max_client_batch_size,
        "router": "text-generation-router",  # clients look for this name
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "prefix_caching": {
            "enabled": inference.generator.prefix_caching,
            "query_tokens": load.query_tokens,
            "hit_tokens": load.hit_tokens,
        },
        **({"adapters": adapters} if adapters else {}),
        "kernels": [
            {"part": kernel.part, "name": kernel.name, "reason": kernel.reason}
            for kernel in inference.generator.info.capabilities.kernels
        ],
        **({"replicas": [_replica(each) for each in load.replicas]} if load.replicas else {}),
    }


def _replica(state: ReplicaState) -> dict[str, object]:
    load = state.load
    return {
        "phase": state.phase,
        "queued": load.queued,
        "running": load.running,
        "kv_blocks_used": load.blocks_total - load.blocks_free,
        "kv_blocks_capacity": load.blocks_total,
        "query_tokens": load.query_tokens,
        "hit_tokens": load.hit_tokens,
        "placed_requests": state.placed,
        "moved_requests": state.moved,
        "losses": state.losses,
    }


def _models(inference: Inference) -> dict[str, Any]:
    """Render the list of models. TGI lists only the model, without adapters."""
    name, strict = inference.model.name, inference.settings.strict_tgi
    names = [name, *(() if strict else inference.generator.info.capabilities.adapters)]
    return {"object": "list", "data": [{"id": each, "object": "model", "created": 0, "owned_by": name} for each in names]}
