"""Notifications about jobs.

webhook_addresses   the allowed hosts and addresses; pure
notify_command      a program of a user's, run as that user
run_command         the process that runs one such program, and ends its remaining children
delivery            delivers the outbox, and repeats failed deliveries
notifier            connects the other modules
stall_watch         reports running jobs without progress
notice_text         the notices of a change, and their recipients; pure
webhooks            one delivery to an address

Nothing here blocks the daemon: a delivery has a time limit, and the outbox is bounded.
"""
