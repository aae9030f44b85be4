"""Jobs with `backend = "slurm"`, submitted from a machine that can reach the cluster's controller.

slurm_commands          runs sbatch, squeue, sacct, scancel, scontrol with time limits, and parses
                        their output
job_directory           reads and writes a job's records, which its nodes and this machine share
claim_output_directory  reserves an output directory for one unfinished job
submit_to_slurm         makes the batch script, and submits it once, even if the response is lost
state_from_slurm        computes the state of a job from Slurm and from the job's records
slurm_jobs              lists, shows, stops and resumes jobs, and reads their logs
"""
