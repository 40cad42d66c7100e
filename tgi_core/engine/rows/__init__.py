"""Models whose attention only they can compute: it runs row by row, and all that concerns single tokens runs for all rows at once."""
