"""How many source files four things go through: `python -m benchmarks.ways`."""
