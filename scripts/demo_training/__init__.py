"""How the demo model is made of its text: tokenizer, training, files, check, card."""
