"""What tests and benchmarks share: processes that end with their starter, deadlines, ranks.

It imports neither `tests` nor `benchmarks`.
"""
