"""Jobs with `backend = "slurm"`, from a machine with access to the cluster's controller.

slurm_commands       sbatch, squeue, sacct, scancel and scontrol, with deadlines
controller_answers   their output, as values
job_directory        the directory of a job's records, which its nodes and this machine share
batch_script         the job as a script for sbatch
output_claim         an output directory belongs to one unfinished job
submitting           a script submitted once, also if the response is lost
last_word            Slurm's record of a job's end, kept for later
first_view           the view of a job before its nodes have written anything
slurm_standing       the state of a job, from Slurm and from its records
slurm_jobs           the jobs themselves: listed, shown, read, stopped, and resumed
"""
