"""Jobs with `backend = "slurm"`, from a machine with access to the cluster's controller.

slurm_commands          sbatch, squeue, sacct, scancel, scontrol: with deadlines, and their output
job_directory           the directory of a job's records, which its nodes and this machine share
claim_output_directory  an output directory belongs to one unfinished job
submit_to_slurm         the batch script, submitted once, also if the response is lost
slurm_job_status        the state of a job, from Slurm and from its records
slurm_jobs              the jobs themselves: listed, shown, read, stopped, and resumed
"""
