"""Removes ended jobs.

removal           the files of one, then its record
cleaner           one job after another
named_paths       the jobs whose files name a path
path_checks       file accesses, in a child process
bind_mounts       directories with several paths
checkpoint_pins   the checkpoints that other jobs need
"""
