"""Jobs with `backend = "slurm"`, submitted from a machine that can reach the cluster's controller.

slurm_commands          run sbatch, squeue, sacct, scancel, scontrol with time limits, and parse
                        their output
job_directory           the directory of a job's records, which its nodes and this machine share
claim_output_directory  reserves an output directory for one unfinished job
submit_to_slurm         makes the batch script, and submits it once, even if the response is lost
state_from_slurm        the state of a job, from Slurm and from the job's records
slurm_jobs              list, show, stop and resume jobs, and read their logs
"""
