"""The records of how an attempt ended. The end of a started attempt is always recorded.

process_ledgers   the ranks and the process tree, in files that survive a killed supervisor
keeper_process    the supervisor's parent, which writes the record if the supervisor cannot
first_failure     the rank that failed first, and the line of its output that says why
outcome           the outcome in one word and one sentence, or inferred from the ledger
"""
