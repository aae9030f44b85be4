"""The full screen of `zerotools top`, the only command that needs textual (the extra `top`).

reading   reads the machine, the jobs and the details of one job for each refresh; with deadlines
drawing   makes the lines for a size of the terminal, without input or output
screen    handles keys, mouse and terminal, by textual; it imports `reading` and `drawing`
"""
