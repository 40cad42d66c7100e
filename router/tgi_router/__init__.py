"""The HTTP side of tgi-core: TGI's routes and OpenAI's, on top of anything that keeps the `Generator` protocol."""

from tgi_router.app import create_app
from tgi_router.generator import Generator, Load
from tgi_router.served_model import ServedModel
from tgi_router.templates import ChatTemplates

__all__ = ["ChatTemplates", "Generator", "Load", "ServedModel", "create_app"]
