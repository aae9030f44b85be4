"""The file names in a job's checkpoint directory. This module imports nothing."""

DCP = "dcp"
"""The directory with the tensors, a torch DCP."""
RECORD = "job.json"
MANIFEST = "MANIFEST.json"
"""The file that is written last: without it the save was not finished."""
