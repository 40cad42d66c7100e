"""Several shards of one model behind one router: which one serves a request, and which continues it if that shard is lost.

`placement` decides, without I/O and without a clock, so that simulations run the server's own code; `pool` executes the decisions, and
opens and closes replicas as `autoscaling` says.
"""

from tgi_core.replicas.placement import Choice, Placement
from tgi_core.replicas.pool import ReplicaPool

__all__ = ["Choice", "Placement", "ReplicaPool"]
