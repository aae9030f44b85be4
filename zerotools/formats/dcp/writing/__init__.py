"""From a Checkpoint of any format to the files of a DCP, one per rank, as torch would save them.

Imports `directories`, `io.distcp` and `runs`.
"""
