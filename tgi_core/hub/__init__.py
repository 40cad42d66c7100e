"""Models from the Hugging Face hub: one commit for weights, tokenizer and config, out of the cache where it is there.

`huggingface_hub` is imported when a model that is not a directory is asked for, never before."""

from tgi_core.hub.fetch import Source, fetch

__all__ = ["Source", "fetch"]
