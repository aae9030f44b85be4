"""The names in a job's checkpoint directory, for modules that only search for them."""

DCP = "dcp"
"""The directory with the tensors, a torch DCP."""
RECORD = "job.json"
MANIFEST = "MANIFEST.json"
"""Written last: without it the save was not finished."""
