"""Images of requests: decoding, and what a model's processor makes of them."""
