"""torch.distributed.checkpoint (DCP): what FSDP and `torch.distributed.checkpoint.save` write.

directory_names  the names by which a directory is recognised
native           what is kept of a checkpoint for its own writer
directories      which DCP directories are one checkpoint
keys             what DCP's flat keys mean: models, optimizers, roles
reading          directory -> Checkpoint, and the TrainingState of its run
writing          Checkpoint of any format -> Target, one file per rank as torch would save it
format           DCP as a line of the table of formats

`.metadata` and the items of `.distcp` files are read and written by `zerotools.io.distcp`, and the
record of a zerotools job by `zerotools.runs`.
"""
