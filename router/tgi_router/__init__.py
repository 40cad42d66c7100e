"""The HTTP server of tgi-core: TGI's and OpenAI's routes, on top of any implementation of the `Generator` protocol."""

from tgi_router.admission import AdmissionControl
from tgi_router.any_server import on_any_server
from tgi_router.app import create_app
from tgi_router.connection import Connection
from tgi_router.connection_policy import ConnectionPolicy
from tgi_router.front import Front
from tgi_router.generator import Generator, Load
from tgi_router.http_server import HttpServer
from tgi_router.served_model import ServedModel
from tgi_router.templates import ChatTemplates

__all__ = [
    "AdmissionControl",
    "ChatTemplates",
    "Connection",
    "ConnectionPolicy",
    "Front",
    "Generator",
    "HttpServer",
    "Load",
    "ServedModel",
    "create_app",
    "on_any_server",
]
