"""Jobs under Slurm: `watcher` submits a job and watches it, `runner` runs it there."""
