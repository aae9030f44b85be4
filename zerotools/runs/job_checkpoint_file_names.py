"""The file names in a job's checkpoint directory. This module imports nothing."""

DCP = "dcp"
"""The name of the directory with the tensors, which is a torch DCP."""
RECORD = "job.json"
MANIFEST = "MANIFEST.json"
"""The name of the manifest, the file that is written last: without it, the save did not finish."""
