"""What opening a model would choose and take, from its config and the headers of its weights."""

from tgi_core.engine.planning.opening import plan_session

__all__ = ["plan_session"]
