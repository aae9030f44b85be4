"""From a Checkpoint to torch files: a Hugging Face directory, or one file to resume training from.

Imports `schema`.
"""
