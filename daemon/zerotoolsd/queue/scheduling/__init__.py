"""The choice of the queued jobs that start next, their GPUs, and the reasons that others wait.

requests, pending_queue           the needs of jobs, and the waiting jobs grouped by need
capability_needs                  the compute capability that a job needs
suitable_gpus, declared_memory    why a GPU cannot be used; the free part of declared memory
faulty_gpus, gpu_messages         GPUs that no job gets; messages about several GPUs
gpu_pass_state, gpu_memory_parts  the GPUs during a pass: whole ones and shared ones
user_quota, elastic_resize        the remaining limits of users; the growth of elastic jobs
scheduler, wait_reasons           one pass over the waiting jobs, pure; the reasons why jobs wait
pass_input                        the input of a pass as one value, also as if some jobs were gone
"""
