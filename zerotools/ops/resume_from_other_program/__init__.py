"""Let a job continue from a checkpoint that another program wrote.

foreign_run             read the checkpoint, even if weights and optimizer are in separate files
name_numbered_state     give names to optimizer state that has numbers instead of parameter names
parameter_order_option  the order of names that `--order` gives: a file, or transformers' model
match_parameter_order   the parameter name of each number, from an order of names
match_masters           the parameter name of each fp32 master, from the weight that equals its cast
rename_to_job           the tensors under the names of the job's model
check_job_fits          reasons to refuse the checkpoint, and notes on differences

Imports numpy only to compare masters, because the ranks of a job also read the checkpoint with this
package, and load its tensors in another way.
"""
