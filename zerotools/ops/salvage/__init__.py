"""Export the whole weights of a damaged checkpoint, and fill holes with another checkpoint's boxes.

sound_files     the sound bytes of the files: checksums, manifests
holes           the sound chunks of a tensor, and the boxes that none of them has
examine         the whole tensors, and the losses of the others
weights         the weights of a checkpoint under the names of an export
filled_weights  holes filled from other tensors, box by box
other           the checkpoint that holes are filled from
mixed_types     one tensor of an output made from parts of different types
salvage_plan    the export, with filled and omitted weights
preparation     all of it together
salvage_json    the result in its documented JSON form
"""
