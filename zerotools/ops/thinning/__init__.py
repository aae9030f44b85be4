"""Dropping the optimizer state of a checkpoint in place: the one operation that changes its source.

entries          what lies in a checkpoint's directory, and whether it is still that
run_checkpoints  which checkpoints of a run are meant
thin_plan        what goes, what is written anew, what that frees; nothing is written
workspace        the directory beside it: the lock, the exchange, what a killed run left
building         the new directory: links to what stays, files written anew, records
checking         whether the new directory is whole, and every tensor in it the one that was there
in_place         these in order
thin_report      what was found or done, as JSON
"""
