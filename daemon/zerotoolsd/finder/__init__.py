"""The process that looks for the checkpoints of programs that do not tell of them.

The supervisor starts it as `python entry.py FINDER.JSON`; nothing else imports this package. It
alone looks into the directories of users, which may be on a file system that hangs.

    entry       finds zerotools without help from the environment
    candidates  what in a directory may be a checkpoint, and its fingerprint
    judging     whether one is whole
    process     the choice of what to go on from, then the watch
"""
