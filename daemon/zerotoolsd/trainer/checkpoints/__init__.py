"""Checkpoints: whole or not at all, and which of them stay.

save_sequence, background     one save after another, at a standstill or beside training
saving, committing            from all ranks' files to one directory under its name
keeping, measured             which stay, and by what they are compared
replicas, hostcopy, finite    who writes which tensor, its copy, and that it has finite values only
sidecars                      which small files go along
resuming, output              where a run resumes, and who owns the directory

It may import `model`, `memory` and `rank`.
"""
