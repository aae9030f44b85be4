"""Notifications about jobs.

addresses    the allowed hosts and addresses; pure
commands     a program of a user's, run as that user
courier      delivers the outbox, and repeats failed deliveries
notifier     connects the other modules
running      the process that runs one such program, and ends its remaining children
stall_watch  reports running jobs without progress
wording      the notices of a change, and their recipients; pure
webhooks     one delivery to an address

Nothing here blocks the daemon: a delivery has a time limit, and the outbox is bounded.
"""
