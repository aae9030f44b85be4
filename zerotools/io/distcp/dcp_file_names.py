"""The names of the files in a DCP directory."""

import re

METADATA = ".metadata"
RANK_METADATA = re.compile(r"__\d+\.metadata")
"""The name of the metadata file of one rank. Such files exist if there is no global `.metadata`
(`use_collectives=False`).
"""
DATA_SUFFIX = ".distcp"
DATA_FILE = re.compile(r"(?:.*/)?__(\d+)_\d+\.distcp")
"""The name of a data file; its first number is the rank that wrote it."""
