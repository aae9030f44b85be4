"""The processes in an allocation of Slurm: a job without a daemon.

    batch script  ->  batch      one process on the first node: runs attempts, one after another
      srun        ->  node       on every node: starts a supervisor there, and ends with it

liveness          which processes still run, and who runs the next attempt, from shared files
slurm_job_record  the state of the job, kept in its directory
node              a node's part of one attempt
srun_all_nodes    all nodes of one attempt: srun, stops, the end of each, and the combined end
run_attempts      attempts, one after another, until the job is over or Slurm wants its nodes
"""
