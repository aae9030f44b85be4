"""Ends the processes of an attempt, and names those that survive.

stop_request_file   requests to stop an attempt, in disk space that was reserved before
stop_programs       sends SIGTERM to the programs, and lets no other program begin after them
process_kinds       tells programs from filters, and from shells and the like
pipe_ends           the pipes that a process reads and writes; keeps their write ends open
output_readers      runners that read the output of programs, and keep running
kill_descendants    SIGKILL for every descendant, until none is left; names those that survive
"""
