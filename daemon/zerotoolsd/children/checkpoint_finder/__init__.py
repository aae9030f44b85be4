"""The process that searches for checkpoints of programs that do not report them.

The supervisor starts it as `python entry.py FINDER.JSON`. Only this process reads the directories
of users, which may be on a file system that hangs.

entry                  starts the process, and finds zerotools next to itself without PYTHONPATH
candidate_checkpoints  finds possible checkpoints in a directory, and takes their fingerprints
find_checkpoints       chooses the checkpoint to continue from, then reports complete ones
"""
