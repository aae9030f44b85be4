"""The full screen of `zerotools top`, the only command that needs textual (the extra `top`).

reading   one refresh: the machine, the jobs, the details of one job; with deadlines
drawing   the lines for a size of the terminal: pure
screen    keys, mouse and terminal, by textual; it imports the two others
"""
