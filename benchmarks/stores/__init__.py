"""Checkpoints in object stores: what reading and writing them takes, and whether it is right."""
