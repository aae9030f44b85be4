"""How the processes of an attempt are asked to end, and ended, and what is left of them.

requests        asking an attempt to stop, in room that was taken before
stopping        programs are asked, and nothing new begins after them
process_kinds   programs, shells and the like that run them, filters
reading_runners those that read what programs write, and run on
pipes           who writes into what others read
reaper          SIGKILL for every descendant, until none is left
left_behind     what SIGKILL has not ended, by name
family          which processes are the attempt's, in a file that outlives them
"""
