"""Users of the machine: their accounts, their rights, and programs that run as a user.

account             finds the account of a uid, in lists of users that may not respond
rights              decides whether a request of a user is allowed, masked or refused
served_users        finds the users for whom this daemon runs jobs
user_limits         finds the limits of each user
start_as_submitter  starts a program as the submitter of a job, by `run_as_user`
run_as_user         becomes a user, then runs another program; a separate program itself
open_as_user        lets the daemon open files of a user with the rights of this user
"""
