"""The start of processes that use the user's programs and directories.

spawning        a child that is started without waiting for it
rank_binding    the processors and the memory nodes of the child
"""
