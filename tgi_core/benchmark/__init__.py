"""Load on a server over HTTP, and what it measures: for `tgi bench` and the benchmarks of this repository."""
