"""GGUF files as models: their header, and the config, tokenizer and tensor names of the same model in Hugging Face's files.

Imports neither torch nor transformers. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""
