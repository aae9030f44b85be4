"""Checkpoints: complete or not at all, and their retention.

save_sequence, background     one save after another, during a pause of training or concurrently
saving, finalize              from all ranks' files to one directory under its name
keeping, measured             the kept ones, and their comparison
replicas, hostcopy, finite    the writer of each tensor, its copy, and the check of its values
completeness                  the check that the tensors of a checkpoint are complete
sidecars                      the small files in a checkpoint
resuming, output              the start of a run, and the owner of the directory

It may import `model`, `memory` and `rank`.
"""
