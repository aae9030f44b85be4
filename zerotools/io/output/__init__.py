"""Making an output directory: staging, the journal, the manifest, and the files without tensors.

Imports `core` and `io.files`.
"""
