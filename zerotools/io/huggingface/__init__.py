"""Hugging Face model directories: config.json, the index, numbered files and sidecar files.

Imports `core`, `io.files` and `io.output`.
"""
