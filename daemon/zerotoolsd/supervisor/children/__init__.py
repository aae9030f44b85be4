"""How the supervisor starts processes whose programs and directories are the user's.

spawning        a child that is begun, and is waited for by nobody
rank_binding    the processors and the memory that it keeps to
"""
