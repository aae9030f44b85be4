"""torch.distributed.checkpoint (DCP), as FSDP and `torch.distributed.checkpoint.save` write it.

directory_names  the names that identify a directory
native           the values of a checkpoint that only its own writer needs
directories      which DCP directories are one checkpoint
keys             the meaning of DCP's flat keys: models, optimizers, roles
reading          directory -> Checkpoint, and the TrainingState of its run
writing          Checkpoint of any format -> Target, one file per rank as torch would save it
format           DCP as a line of the table of formats

`.metadata` and the items of `.distcp` files are read and written by `zerotools.io.distcp`, and the
record of a zerotools job by `zerotools.runs`.
"""
