"""Benchmarks: the job against other tools, the loader, and the plan at FineWeb's size."""
