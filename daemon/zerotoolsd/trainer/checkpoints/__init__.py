"""Saves, keeps and chooses the checkpoints of a run.

save_checkpoint                all ranks write one checkpoint together
commit_and_delete_checkpoints  rank 0 renames the complete directory to its name
choose_checkpoints_to_keep     which checkpoints are kept
resume_point                   the checkpoint that a run continues from

These modules may import `engine`, `model` and `rank`.
"""
