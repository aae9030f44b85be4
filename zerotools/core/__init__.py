"""Values without I/O, for all other packages: boxes, dtypes, checkpoints, errors. Standard library
only."""
