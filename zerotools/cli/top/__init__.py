"""The full screen of `zerotools top`, which alone of all commands needs textual (the extra `top`).

reading   what one refresh reads: the machine, the jobs, of one job its details; with deadlines
drawing   the lines that this becomes at a size of the terminal: pure
screen    keys, mouse and terminal, by textual; it imports the two others
"""
