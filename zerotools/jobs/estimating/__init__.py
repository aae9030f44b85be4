"""The memory of a machine that a job, or a model with a config of another launcher, will take."""
