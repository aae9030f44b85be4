"""Users of the machine: who they are, what they may do, and how a process becomes one of them.

account, name_service       the account of a uid; lists of users, which may not answer
caller, policy              who asks; (caller, action, owner) -> allowed, masked or refused: pure
served_users, user_limits   the users for whom jobs run; limits of one user
job_user, run_as_user       starts a program as the submitter of a job
open_as_user                opens files of users, by the daemon itself, with their rights
"""
