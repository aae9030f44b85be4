"""Universal checkpoints: one directory per parameter, saved for no particular world size.

Reads and writes them. May import every other room of `deepspeed`; `reading.read` alone imports it.
"""
