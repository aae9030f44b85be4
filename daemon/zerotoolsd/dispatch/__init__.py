"""The dispatcher: its loop decides which jobs start, yield or are removed.

dispatcher                  runs the loop, and makes its parts
scheduling_loop             starts waiting jobs, with the resources that the scheduler chose
elastic_growth              restarts running elastic jobs with more GPUs when GPUs are free
preempt_for_priority        asks running jobs to yield to a waiting job of higher priority
end_jobs_for_memory         asks jobs to yield if memory runs out, and ends jobs that save slowly
host_memory_guard           watches the memory of the host, and acts before it is used up
gpu_memory_guard            watches the memory of shared GPUs, and acts before it is used up
forecast_memory_exhaustion  computes from samples when memory is used up; no I/O
choose_low_memory_action    chooses the next action from the forecast and the running jobs; no I/O
user_priority_ranges        limits the priorities that users may give
upload_last_checkpoints     uploads the last checkpoint of a job if no supervisor has uploaded it
remove_ended_jobs           removes ended jobs, one after another
remove_job_files            finds and removes the files of an ended job
checkpoint_pins             protects checkpoints that other jobs need
"""
