"""Jobs with `backend = "slurm"`, from a machine with access to the cluster's controller.

slurm_commands   sbatch, squeue, sacct, scancel and scontrol, with deadlines, and their output
job_directory    the directory of a job's records, which its nodes and this machine share
output_claim     an output directory belongs to one unfinished job
submitting       the batch script, submitted once, also if the response is lost
slurm_standing   the state of a job, from Slurm and from its records
slurm_jobs       the jobs themselves: listed, shown, read, stopped, and resumed
"""
