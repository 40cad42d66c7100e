"""The app: routes, middleware and error responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Lifespan

from tgi_core.config import Settings
from tgi_core.lifecycle import Lifecycle, Phase
from tgi_core.telemetry.traces import Traces
from tgi_router.admission import AdmissionControl, refusals
from tgi_router.anthropic_messages import MessagesRoutes
from tgi_router.auth import KeyAuth
from tgi_router.clients import Clients
from tgi_router.cloud import CloudRoutes
from tgi_router.converted_chat import ConvertedChats
from tgi_router.cors import cors
from tgi_router.docs_page import DocumentRoutes
from tgi_router.endpoints import Endpoint, Gate, make_routes, methods_by_path
from tgi_router.errors import BodyRejected, NoRoute, NotServing, RouterError, ShuttingDown, WrongMethod
from tgi_router.generator import Generator
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Inference
from tgi_router.kserve import KServeRoutes
from tgi_router.metrics import Metrics
from tgi_router.native import NativeRoutes
from tgi_router.openai import Dialect
from tgi_router.openai_chat import ChatRoutes
from tgi_router.openai_completions import CompletionRoutes
from tgi_router.probes import Probes
from tgi_router.request_log import RequestLog
from tgi_router.responses_routes import ResponsesRoutes
from tgi_router.scheduling_headers import SchedulingHeaders
from tgi_router.served_model import ServedModel
from tgi_router.small_routes import SmallRoutes
from tgi_router.template_pool import TemplatePool
from tgi_router.thread_pool import ThreadPool
from tgi_router.tokenizing import Tokenizing
from tgi_router.ui_page import UiRoutes
from tgi_router.validation import effective_limits

if TYPE_CHECKING:
    from fastapi import FastAPI


App = TypeVar("App", bound=Starlette)


def create_app(
    settings: Settings,
    model: ServedModel,
    generator: Generator,
    registry: CollectorRegistry | None = None,
    traces: Traces | None = None,
    lifecycle: Lifecycle | None = None,
) -> FastAPI:
    """Create the ASGI app that serves a model. The generator must be running: its limits and capabilities are read here, once.
    `/metrics` exports everything in `registry`, to which the app adds its own metrics; default: a new one. `lifecycle` decides
    whether requests are accepted; default: always."""
    lifecycle = lifecycle or Lifecycle(Phase.SERVING)
    threads = ThreadPool(settings.validation_workers)
    metrics = Metrics(registry or CollectorRegistry(), generator, effective_limits(settings, generator.limits))
    headers = ComputeHeaders(generator.info, settings.compute_type)
    dialect = Dialect(settings.strict_tgi)
    templates = TemplatePool(settings.validation_workers, model.tokenizer.special_texts)
    tokenizing = Tokenizing(model.tokenizer, settings.validation_workers)
    clients = Clients.of_settings(settings)
    scheduling = SchedulingHeaders(clients, settings.request_timeout)
    inference = Inference(settings, model, generator, metrics, threads, tokenizing, scheduling)
    probes = Probes(lifecycle, lambda: generator.healthy(), lambda: generator.sound)
    endpoints = _endpoints(inference, probes, headers, dialect, templates)
    lifecycle.when_ending(inference.end)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        threads.close()
        templates.close()
        tokenizing.close()
        await inference.validator.grammars.close()

    # FastAPI is slow to import; meanwhile the server can already respond to probes
    from tgi_router.api import Api, make_operations

    operations = make_operations(endpoints, gate(lifecycle, inference, settings.strict_tgi), dialect)
    app = assemble(partial(Api, endpoints), settings, endpoints, operations, dialect, traces, lifespan)
    app.state.threads = threads  # which validate large bodies
    answers = refusals(endpoints, dialect, headers.stream(0)) if traces is None else {}
    app.state.admission = AdmissionControl(inference, lifecycle, clients, answers, settings.api_key)
    return app


def gate(lifecycle: Lifecycle, inference: Inference, strict: bool) -> Gate:
    """Return a gate that lets a request through if the server accepts requests and has a permit for the client, before any work is
    done for it. TGI reports overload within streams, which requires reading their bodies."""

    def check(endpoint: Endpoint, request: Request) -> None:
        if lifecycle.over:
            raise ShuttingDown
        if not lifecycle.accepts:
            raise NotServing(lifecycle.reason or lifecycle.phase.value)
        if endpoint.generates and not (strict and endpoint.events is not None):
            inference.check_room(request)

    return check


def assemble(
    kind: Callable[..., App],
    settings: Settings,
    endpoints: Sequence[Endpoint],
    routes: Sequence[BaseRoute],
    dialect: Dialect,
    traces: Traces | None,
    lifespan: Lifespan[Starlette] | None = None,
) -> App:
    """Create an app from routes, with the middleware common to all. `kind` is its class; `endpoints` defines which routes are
    public."""
    app = kind(
        routes=routes,
        middleware=[Middleware(RequestLog, traces=traces), *_middleware(settings, endpoints)],
        exception_handlers={
            RouterError: _answering(dialect.respond),
            BodyRejected: _answering(dialect.respond),
            HTTPException: _answering(partial(_unserved, endpoints, dialect)),
            ClientDisconnect: _answering(_unread),
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _endpoints(
    inference: Inference, probes: Probes, headers: ComputeHeaders, dialect: Dialect, templates: TemplatePool
) -> list[Endpoint]:
    """Return all endpoints. The first for a path and method takes precedence."""
    small, native = SmallRoutes(inference), NativeRoutes(inference, headers)
    chat, completions = ChatRoutes(inference, headers, dialect, templates), CompletionRoutes(inference, headers, dialect)
    cloud = CloudRoutes(inference, native, chat, completions)
    chats = ConvertedChats(inference, headers, chat)
    others = () if dialect.strict else (MessagesRoutes(inference, dialect, chats), ResponsesRoutes(inference, dialect, chats))
    return [
        *cloud.named_endpoints(probes.health),
        *probes.endpoints(),
        *native.endpoints(),
        *chat.endpoints(),
        *completions.endpoints(),
        *(endpoint for each in others for endpoint in each.endpoints()),
        *small.endpoints(),
        *cloud.endpoints(),
        *KServeRoutes(inference, probes).endpoints(),
        *DocumentRoutes().endpoints(),
        *(UiRoutes().endpoints() if inference.settings.ui else ()),
    ]


def _middleware(settings: Settings, endpoints: Sequence[Endpoint]) -> list[Middleware]:
    """Return the middleware. CORS comes first: a browser's preflight request has no key."""
    stack = cors(settings, methods_by_path(endpoints))
    if settings.api_key is not None:
        stack.append(Middleware(KeyAuth, key=settings.api_key, public=make_routes(each for each in endpoints if each.public)))
    return stack


def _answering(render: Callable[[str, Any], Response]) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        return render(request.scope["path"], error)

    return handler


def _unserved(endpoints: Sequence[Endpoint], dialect: Dialect, path: str, error: HTTPException) -> Response:
    """Respond to 404 and 405 with the routes that are served; TGI's responses have no body."""
    if dialect.strict:
        return Response(status_code=error.status_code, headers=error.headers)
    allowed = (error.headers or {}).get("Allow")
    if allowed is not None:
        answer = dialect.respond(path, WrongMethod(f"this path is served for {allowed}"))
        answer.headers["allow"] = allowed
        return answer
    served = sorted({each.shown_path for each in endpoints if each.documented})
    return dialect.respond(path, NoRoute(f"nothing is served at this path; served are {', '.join(served)}"))


def _unread(path: str, error: ClientDisconnect) -> Response:
    """Respond to a client that disconnected before its body was complete; the response is discarded."""
    return Response(status_code=400)
