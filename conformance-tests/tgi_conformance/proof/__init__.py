"""Proof that the suite finds defects, on many seeds: each mutant fails the clauses meant for it, each clause fails some mutant,
and no correct twin fails."""
