"""What a job, or a model with a config of another launcher, will take of a machine's memory."""
