"""Compare two checkpoints: pair their tensors, and measure how much they differ.

checkpoint_diff           `zerotools diff`: prepare the comparison and carry it out
pair_tensors              find the tensor of B for each tensor of A; propose rules to pair more
read_two_tensors          the same elements of two tensors, block by block
tensor_diff               the difference of each pair of tensors
training_and_config_diff  the difference of steps, param groups, loss scaler and config.json
tolerance                 the difference that is allowed
diff_result               the result, and its JSON
diff_page_data            the values that the page of a comparison shows
"""
