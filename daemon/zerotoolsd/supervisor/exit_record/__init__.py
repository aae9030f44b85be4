"""Records how an attempt ended. The end of a started attempt is always recorded.

process_ledgers  lists ranks and processes in files that survive a killed supervisor
keeper_process   runs the supervisor's parent, which writes the record if the supervisor cannot
first_failure    finds the rank that failed first, and the line of its output that says why
decide_outcome   decides the outcome: one word, and one sentence about the cause
"""
