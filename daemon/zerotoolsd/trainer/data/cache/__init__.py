"""Tokenised data that restarts and other jobs take again: tokencache, fingerprint (its keys), and
checksum, by which damage is found."""
