"""Linear providers, one file each."""
