"""Several shards of one model behind one router: which of them serves a request, and who continues it when that one is lost.

`placement` decides, without I/O and without a clock, so that simulations run the very code that serves; `pool` carries it out, and
opens and closes replicas as `autoscaling` says.
"""

from tgi_core.replicas.placement import Choice, Placement
from tgi_core.replicas.pool import ReplicaPool

__all__ = ["Choice", "Placement", "ReplicaPool"]
