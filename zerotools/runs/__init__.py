"""The checkpoints of zerotools jobs, for every engine.

training_record            job.json: the state of a training checkpoint except its tensors
base_model_record          the files of the base model, for checkpoints of adapters
foreign_checkpoint_record  the job record of a checkpoint that another program saved
manifest                   MANIFEST.json: size and SHA-256 of every file
find_job_checkpoints       directory names, the checkpoint to resume from, the `latest` hint
deletable_checkpoints      checkpoints that may be deleted, and those that unfinished jobs need
upload_records             records of the copies of checkpoints in an object store
thinning_record            the record of the parts that thinning dropped
optimizer_names_record     names for an optimizer's numbered parameters
job_checkpoint_file_names  file names in a job's checkpoint directory

`runs` is above `io` and below `formats`; formats, ops, jobs and the daemon may import it. It uses
the standard library only, because the training process imports it too.
"""
