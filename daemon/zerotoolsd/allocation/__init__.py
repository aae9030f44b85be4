"""What runs in an allocation of Slurm: a job without a daemon.

    batch script  ->  batch      one process on the first node: attempts, one after another
      srun        ->  node       on every node: starts a supervisor there, and ends with it

beats            who lives, by files that the nodes share
one_at_a_time    one attempt at a time, whatever Slurm starts twice
job_state        where the job stands, kept in its directory and shown to people
node             a node's part of one attempt
node_step        all nodes of one attempt: srun, stops, what each came to
combined_end     how an attempt ended, of what its nodes say
master           attempts, one after another, until the job is over or Slurm wants its nodes
"""
