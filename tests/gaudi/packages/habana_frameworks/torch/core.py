"""Lazy mode's marks."""


def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Nothing in eager mode."""
