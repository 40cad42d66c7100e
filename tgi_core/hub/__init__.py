"""Models from the Hugging Face Hub, with weights, tokenizer and config from one commit, cached if possible.

`huggingface_hub` is imported only when a model is not a local directory."""

from tgi_core.hub.fetch import Source, fetch

__all__ = ["Source", "fetch"]
