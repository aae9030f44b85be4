"""The records of how an attempt ended. A started attempt is never forgotten.

reserved_record   a record with disk space that is reserved before it is needed
rank_ledger       the state of the ranks, in memory that survives a killed supervisor
inferred_record   the record that is inferred from the ledger
keeper            the supervisor's parent, which writes the record if the supervisor cannot
last_error        the line of a program's output that explains why it failed
first_failure     the rank that failed first, when several failed
outcome           the outcome in one word and one sentence
"""
