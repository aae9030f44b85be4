"""How an attempt ended, and that it is never forgotten.

reserved     a record whose room is taken before it is needed
ledger       what is known of the ranks, where it outlives a killed supervisor
inferred     the record that follows from the ledger alone
keeper       the supervisor's parent, which writes the record where the supervisor cannot
blame        which rank began it, when several failed
verdict      the end in one word and one sentence
"""
