"""The fake hub's fixtures."""

from tests.hub.conftest import demo_files, hub, hub_environment, tgi

__all__ = ["demo_files", "hub", "hub_environment", "tgi"]
