"""Whether Triton is installed and has a device to compile for. Importing this module does not import Triton."""

from __future__ import annotations

_LEAST = (3, 6)


def probe() -> str:
    """Why kernels cannot run here; empty if they can."""
    try:
        import triton
    except ImportError as error:
        return f"triton cannot be imported: {error}"
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < _LEAST:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, _LEAST))}"
    if not triton.knobs.runtime.interpret:
        try:
            triton.runtime.driver.active.get_current_target()
        # A driver module that does not compile, no driver library, no device: each raises its own kind.
        except Exception as error:  # noqa: BLE001
            return f"triton compiles for no device here: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""
