"""The value types that all other packages use: boxes, dtypes, checkpoints, errors. This package
does no I/O and imports only the standard library."""
