"""Ends the processes of an attempt, and names those that survive.

stop_request_file   requests to stop an attempt, in disk space that was reserved before
stopping            sends SIGTERM to the programs, and lets no other program begin after them
process_kinds       programs, shells and the like that run them, filters
reading_runners     runners that read the output of programs, and keep running
pipes               which processes write to a pipe that others read
reaper              SIGKILL for every descendant, until none is left
left_behind         processes that survived SIGKILL, by name
process_tree        which processes are the attempt's, in a file that outlives them
"""
