"""Small checkpoints by torch alone (DCP, FSDP, sharded and plain state dicts), with their truth."""
