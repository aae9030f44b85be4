"""Tokenised data that restarts and other jobs take again: tokencache, fingerprint (its keys), and
checksum, which detects damage."""
