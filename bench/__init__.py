"""Benchmarks: of this project alone, and beside other engines and servers."""
