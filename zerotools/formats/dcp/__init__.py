"""torch.distributed.checkpoint (DCP): what FSDP and `torch.distributed.checkpoint.save` write.

directory_names  the names by which a directory is known
directories      which DCP directories are one checkpoint
keys             DCP's flat keys and ours
reading          directory -> Checkpoint, and the TrainingState of its run
writing          Checkpoint of any format -> Target
format           these as a line of the table of formats

`.metadata` and the items of `.distcp` files are read and written by `zerotools.io.distcp`, and the
record of a zerotools job by `zerotools.runs`.
"""
