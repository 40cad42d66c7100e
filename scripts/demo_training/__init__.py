"""Building the demo model from its text: tokenizer, training, files, check, card."""
