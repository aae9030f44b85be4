"""Who may see and do what with whose jobs.

caller    who asks: a uid, its name and its groups
people    what users are called, looked up by a process that may hang
policy    (caller, action, owner) -> allowed, masked or refused, with the sentence; pure
"""
