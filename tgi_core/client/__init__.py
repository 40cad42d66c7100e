"""Shard clients: how the scheduler reaches a model server."""

from tgi_core.client.base import ShardClient

__all__ = ["ShardClient"]
