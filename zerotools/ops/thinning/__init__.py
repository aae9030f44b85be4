"""Remove the optimizer state of a checkpoint in place. No other operation changes its input.

select_checkpoints  the checkpoints of a run to thin
thin_plan           the files to remove and to write, and the bytes that become free
directory_snapshot  the entries of a checkpoint's directory, and a check that they are unchanged
thinned_copy        make the new directory and check it
swap_directories    exchange the two directories, and remove files of a killed run
carry_out_thinning  all steps in order, and the result as JSON
"""
