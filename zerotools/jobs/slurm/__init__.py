"""Jobs with `backend = "slurm"`, seen from a machine that can ask the cluster's controller.

slurm_commands       sbatch, squeue, sacct, scancel and scontrol, with deadlines
controller_answers   what they print, as values
job_directory        where a job's records are, which its nodes and this machine share
batch_script         the job as a script for sbatch
output_claim         an output directory belongs to one job that is not over
submitting           a script handed over once, also where the answer is lost
last_word            how Slurm says that a job ended, kept for later
first_view           what is shown of a job before its nodes have written anything
slurm_standing       what is known of a job, by Slurm's word and by its records
slurm_jobs           the jobs themselves: listed, shown, read, stopped, and gone on with
"""
