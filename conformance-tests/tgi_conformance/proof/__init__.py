"""The proof that the suite bites: every mutant by the clauses meant for it, every clause some mutant, and no good twin, on many seeds."""
