"""From torch files to a Checkpoint: one whole file, Hugging Face shards, or one file per rank.

Imports `schema`.
"""
