"""The dispatcher: its loop decides which jobs start, yield or are removed. Nothing else changes
jobs.

dispatcher                the loop, and the parts that it is made of
scheduling_loop           starts waiting jobs, with the resources that the scheduler chose
elastic_growth            running elastic jobs grow into free resources
preempt_for_priority      chooses running jobs that yield to one of higher priority, and asks them
end_jobs_for_memory       asks jobs to yield if memory runs out, and ends them if saving is too slow
host_memory_guard         acts before the memory of the host is used up
gpu_memory_guard          acts before the memory of a shared GPU is used up
make_memory_guards        makes the two
memory_forecast           samples of memory -> the time until it is used up; no I/O
choose_low_memory_action  the forecast and the running jobs -> the next action; no I/O
host_memory_reading       the memory of the host, and of the control group in which jobs run
priority_classes          the priorities that users may give
last_uploads              uploads the last checkpoint if no supervisor has done it
cleaner                   removes ended jobs, one after another
removable_files           the files of an ended job, and their removal
checkpoint_pins           the checkpoints that other jobs need
"""
