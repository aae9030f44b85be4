"""Notifications about jobs and about the machine.

deliver_notices         delivers notices from the outbox and repeats failed deliveries
send_to_destinations    sends one notice to a configured destination: a service, or e-mail
webhooks                sends one notice by HTTP; notices of jobs go to allowed addresses only
notify_command          runs a command of a user for a notice, as that user
notify_command_process  runs one such command as a process, and ends its remaining children
watch_for_notices       finds first steps and stalls of jobs, and shortages of memory and disk
message_formats         formats requests to Slack, Discord, Feishu, DingTalk and ntfy; no I/O
make_notices            makes the notices of a change, with texts and recipients

Notifications never block the daemon: a delivery has a time limit, and the size of the outbox is
limited.
"""
