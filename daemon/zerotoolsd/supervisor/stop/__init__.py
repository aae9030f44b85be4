"""Ends the processes of an attempt, and names the processes that survive.

stop_request_file         writes and reads requests to stop an attempt
stop_programs             sends SIGTERM to the programs, and lets no other program begin after them
process_kinds             classifies processes: programs, runners of programs, filters
keep_pipes_open           finds the pipes that a process reads and writes; keeps write ends open
runners_that_read_output  finds runners that read the output of programs and must continue
kill_descendants          kills every descendant, and names the descendants that survive
"""
