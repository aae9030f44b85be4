"""Tokenised data that restarts and other jobs take again: tokencache, and fingerprint, its keys."""
