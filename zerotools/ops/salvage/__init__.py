"""What can be saved of a damaged checkpoint: the weights that are whole, and whole weights of
another checkpoint's boxes where it has holes.

sound_files     which bytes of the files are sound: checksums, manifests
holes           the sound chunks of a tensor, and the boxes that none of them has
examine         which tensors are whole, and what is lost of the others
weights         the weights of a checkpoint under the names of an export
filled_weights  holes filled from other tensors, box by box
other           the checkpoint that holes are filled from
mixed_types     one tensor of an output made of parts that have different types
salvage_plan    the export, and what is filled and left out
preparation     all of it together
salvage_json    what was found and done, in its documented JSON form
"""
