"""See `internal`."""

from habana_frameworks.torch.utils import internal

__all__ = ["internal"]
