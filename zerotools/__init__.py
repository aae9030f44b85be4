"""Tools for sharded training checkpoints, and the client of the training daemon."""

__version__ = "0.1.0"
