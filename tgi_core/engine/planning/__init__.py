"""Plans how a model would run and how much memory it would take, from its config and the headers of its weights."""

from tgi_core.engine.planning.opening import plan_session

__all__ = ["plan_session"]
