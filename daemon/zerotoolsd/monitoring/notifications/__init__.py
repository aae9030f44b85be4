"""Notifications about jobs.

notice_text     the notices of a job's change and their recipients; no I/O
notifier        delivers notices from the outbox, repeats failed deliveries, reports stalls
webhooks        sends one notice to an allowed address
notify_command  runs a command of a user for a notice, as that user
run_command     the process that runs one such command, and ends its remaining children

Nothing here blocks the daemon: a delivery has a time limit, and the outbox is bounded.
"""
