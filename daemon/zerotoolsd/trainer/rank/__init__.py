"""This rank of a job, and its communication with the other ranks.

rank_settings         the number of this rank, its job, and stop requests
process_group         the process group, and decisions that rank 0 makes for all ranks
rendezvous_of_nodes   how the nodes of a job find one another
check_same_files      compares the files of the nodes
notify_supervisor     datagrams to the supervisor
rank_errors           errors that end a rank, and their exit codes

`rank_settings`, `notify_supervisor` and `rank_errors` do not import torch. No module of this
package imports another package of the trainer.
"""
