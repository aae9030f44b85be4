"""The tables of `python -m benchmarks.zero`, and the ranks that they start."""
