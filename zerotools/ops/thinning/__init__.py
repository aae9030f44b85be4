"""Dropping the optimizer state of a checkpoint in place: the one operation that changes its source.

entries          the entries of a checkpoint's directory, and a check that they are unchanged
run_checkpoints  the selected checkpoints of a run
thin_plan        files to remove and to write, and the space that frees; nothing is written
workspace        the directory next to it: the lock, the exchange, files of a killed run
building         the new directory: links to kept files, new files, records
checking         checks that the new directory is whole, and its tensors unchanged
in_place         these in order
thin_report      the result as JSON
"""
