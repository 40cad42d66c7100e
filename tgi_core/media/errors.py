"""Errors of images."""

from __future__ import annotations


class ImageRejected(Exception):
    """An image, or a prompt with images, cannot be used; the message says why."""


class MediaBusy(Exception):
    """Too many prompts with images wait to be processed."""
