"""Compare two checkpoints: pair their tensors, and measure how much they differ.

checkpoint_diff   `zerotools diff`: prepare the comparison and carry it out
pairing           find the tensor of B for each tensor of A; propose rules that would pair more
read_two_tensors  the same elements of two tensors, block by block; weights with an adapter added
tensor_diff       the difference of each pair of tensors
training_diff     the difference of steps, param groups, loss scaler and config.json
tolerance         the difference that is allowed
diff_result       the result, and its JSON
diff_page_data    the values that the page of a comparison shows
"""
