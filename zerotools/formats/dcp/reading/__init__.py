"""From a DCP directory to a Checkpoint, and to the TrainingState of its run.

Imports `keys`, `directories`, `io.distcp` and `runs`.
"""
