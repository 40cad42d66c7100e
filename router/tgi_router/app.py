"""The app: routes, middleware and the answers to errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tgi_core.config import Settings
from tgi_router.auth import BearerAuth
from tgi_router.errors import BodyRejected, RouterError, body_response, error_response
from tgi_router.generator import Generator
from tgi_router.headers import ComputeHeaders
from tgi_router.inference import Inference
from tgi_router.metrics import Metrics
from tgi_router.native import NativeRoutes
from tgi_router.openai_chat import ChatRoutes
from tgi_router.openai_completions import CompletionRoutes
from tgi_router.served_model import ServedModel
from tgi_router.small_routes import SmallRoutes
from tgi_router.validation import effective_limits
from tgi_router.workers import Workers


def create_app(
    settings: Settings, model: ServedModel, generator: Generator, registry: CollectorRegistry | None = None
) -> Starlette:
    """The ASGI app that serves a model. The generator must be up: its limits and capabilities are read here, once.

    `/metrics` shows everything in `registry`, to which the app adds its own metrics; default: a new one.
    """
    workers = Workers(settings.validation_workers)
    metrics = Metrics(registry or CollectorRegistry(), generator, effective_limits(settings, generator.limits))
    inference = Inference(settings, model, generator, metrics, workers)
    headers = ComputeHeaders(generator.info)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        workers.close()

    app = Starlette(
        routes=[
            *SmallRoutes(inference).routes(),
            *NativeRoutes(inference, headers).routes(),
            *ChatRoutes(inference, headers).routes(),
            *CompletionRoutes(inference, headers).routes(),
        ],
        middleware=_middleware(settings),
        exception_handlers={
            RouterError: _answering(error_response),
            BodyRejected: _answering(body_response),
            HTTPException: _answering(_empty),
            ClientDisconnect: _answering(_unread),
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _middleware(settings: Settings) -> list[Middleware]:
    """CORS comes first: a browser's preflight carries no key."""
    origins = settings.cors_allow_origin or ("*",)
    stack = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["content-type"])]
    if settings.api_key is not None:
        stack.append(Middleware(BearerAuth, key=settings.api_key))
    return stack


def _answering(render: Callable[[Any], Response]) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, error: Exception) -> Response:
        return render(error)

    return handler


def _empty(error: HTTPException) -> Response:
    """404 and 405 have no body."""
    return Response(status_code=error.status_code, headers=error.headers)


def _unread(error: ClientDisconnect) -> Response:
    """The client left before its body was complete; nobody reads this."""
    return Response(status_code=400)
