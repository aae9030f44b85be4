"""The process that searches for checkpoints of programs that do not report them.

The supervisor starts it as `python entry.py FINDER.JSON`. Only this process reads the directories
of users, which may be on a file system that hangs.

entry              finds zerotools without help from the environment
candidates         possible checkpoints in a directory, and their fingerprints
completeness       whether one is complete
find_checkpoints   the choice of the checkpoint to continue from, then the watch
"""
