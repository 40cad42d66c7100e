"""Encoder-decoders: the prompt goes through the encoder once, and the decoder's rows run together."""
