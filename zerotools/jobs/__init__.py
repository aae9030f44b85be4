"""Code for jobs that client, daemon and trainer share: job file, imports, client, Slurm. Standard
library only."""
