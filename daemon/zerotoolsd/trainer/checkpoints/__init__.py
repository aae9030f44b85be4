"""Checkpoints: whole or not at all, and which of them stay.

checkpointing, saves          when to save, at a standstill or beside training (also background)
saving, committing            from all ranks' files to one directory under its name
keeping, measured             which stay, and by what they are compared
replicas, hostcopy            who writes which tensor, and the copy that is written beside training
resuming, output              where a run goes on, and whose the directory is
"""
