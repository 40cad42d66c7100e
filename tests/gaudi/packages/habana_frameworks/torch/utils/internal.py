"""The mode that was chosen."""

import os


def is_lazy() -> bool:
    """Lazy mode, unless the variable says otherwise."""
    return os.environ.get("PT_HPU_LAZY_MODE", "1") != "0"
