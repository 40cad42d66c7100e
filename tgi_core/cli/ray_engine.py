"""`--engine ray`: the checks of its settings, and an opener for each replica on the cluster."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from tgi_core.cli.shard_flags import shard_flags
from tgi_core.client.base import Opener
from tgi_core.config import Settings
from tgi_core.errors import StartupError
from tgi_core.on_ray.layout import parse_resources
from tgi_core.shard_access import ShardAccess, access_of_router

_TOKEN_BYTES = 32
_ANYWHERE = "10.0.0.1:0"
"""Any address that is not a Unix socket."""


def check_engine(settings: Settings) -> None:
    """Check the settings of --engine ray without connecting to a cluster. Raises StartupError."""
    if settings.engine != "ray":
        if settings.ray_resources is not None:
            raise StartupError("--ray-resources: has no effect without --engine ray; add it, or leave the flag out")
        return
    if find_spec("ray") is None:
        raise StartupError("--engine ray: the package ray is not installed; pip install 'tgi-core[ray]'")
    if settings.ray_resources is not None:
        parse_resources(settings.ray_resources)
    if settings.in_process:
        raise StartupError("--in-process: shards of --engine ray run on its nodes; leave one of the two out")
    if settings.sharded and (settings.num_shard or 0) < 2:
        raise StartupError("--sharded: with --engine ray, set --num-shard to the number of ranks")


def open_on_ray(directory: Path, settings: Settings) -> list[Opener]:
    """Make an opener for each replica. The nodes read the model as it was named: a Hub id, or a path that all of them have. `directory` is
    the router's copy. Raises StartupError."""
    from tgi_core.on_ray.cluster import RayCluster
    from tgi_core.on_ray.opener import OnCluster

    taken = None if settings.ray_resources is None else parse_resources(settings.ray_resources)
    cluster = RayCluster(taken, log_to_driver=not settings.json_output)
    access = access_on_ray(settings, os.environ)
    arguments = shard_arguments(settings)
    ranks = settings.num_shard or 1
    return [OnCluster(cluster, ranks, arguments, directory, access) for _ in range(settings.most_replicas)]


def access_on_ray(settings: Settings, environ: Mapping[str, str]) -> ShardAccess:
    """Credentials of the router and of the shards that it starts: the configured token, or a new one. Raises StartupError."""
    access = access_of_router(settings, environ, _ANYWHERE)
    return access if access.token is not None else replace(access, token=secrets.token_urlsafe(_TOKEN_BYTES))


def shard_arguments(settings: Settings) -> list[str]:
    """Arguments of a shard on another node, which gets its token from the environment."""
    there = replace(settings, num_shard=None, sharded=None, shard_token_file=None, shard_without_token=False)
    model = settings.model_id
    if model is None:
        return shard_flags(there)
    return [str(Path(model).absolute()) if Path(model).exists() else model, *shard_flags(there)]
