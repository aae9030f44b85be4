"""The rights of users to see and change jobs.

caller    the caller: a uid, its name and its groups
people    the names of users, looked up by a process that may hang
policy    (caller, action, owner) -> allowed, masked or refused, with the sentence; pure
"""
