"""Conversions that several runs carry out together: `python -m benchmarks.parts`."""
