"""Our own code against libraries that do the same: `python -m benchmarks.libraries`."""
