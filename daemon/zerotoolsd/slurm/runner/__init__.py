"""The processes in an allocation of Slurm: a job without a daemon.

    batch script  ->  batch      one process on the first node: runs attempts, one after another
      srun        ->  node       on every node: starts a supervisor there, and ends with it

liveness          shows by shared files which processes run; decides who runs the next attempt
slurm_job_record  keeps the state of the job in the job's directory
node              runs one attempt on one node
srun_all_nodes    starts and stops one attempt on all nodes, and combines the ends of the nodes
run_attempts      runs attempts until the job is over or Slurm takes back the nodes
"""
