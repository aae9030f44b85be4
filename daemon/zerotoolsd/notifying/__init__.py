"""Who is told what becomes of jobs.

addresses    which hosts and addresses may be reached; pure
commands     a program of a user's, run as that user
courier      delivers what is in the outbox, and tries again
notifier     puts the others together
running      the process that runs one such program, and ends what it leaves behind
stall_watch  tells of jobs that run and do not get on
wording      what is to be told of a change, and to whom; pure
webhooks     one delivery to an address

Nothing here holds up the daemon: a delivery has a time limit, and the outbox is bounded.
"""
