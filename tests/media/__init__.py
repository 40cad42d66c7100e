"""Tests of images: decoding, the model's processor, and its worker processes."""
