"""The records of how an attempt ended. A started attempt is never forgotten.

reserved     a record with disk space that is reserved before it is needed
ledger       the state of the ranks, in memory that survives a killed supervisor
inferred     the record that is inferred from the ledger
keeper       the supervisor's parent, which writes the record if the supervisor cannot
blame        the rank that failed first, when several failed
verdict      the outcome in one word and one sentence
"""
