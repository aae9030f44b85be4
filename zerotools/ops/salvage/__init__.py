"""Export the complete weights of a damaged checkpoint, and fill holes from another checkpoint.

prepare_salvage          `zerotools salvage`: examine, plan, and describe the result as JSON
examine_damage           find the tensors that are complete, and the lost parts of the others
undamaged_bytes          the bytes of each file that no checksum or manifest contradicts
find_holes               the undamaged chunks of a tensor, and the boxes that no chunk has
exported_weights         the weights under the names of the export
checkpoint_to_fill_from  the checkpoint that holes are filled from
fill_holes               weights with filled holes; their parts may have several dtypes
salvage_plan             the weights to write, and those to leave out
"""
