"""Shard clients, through which the scheduler talks to a model server."""

from tgi_core.client.base import ShardClient

__all__ = ["ShardClient"]
