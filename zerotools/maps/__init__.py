"""Layout maps: how programs that train or serve models name and arrange the same weights.

A family of models (`families/*.toml`) lists its tensors in the Hub's layout, `hf`, with shapes from
config.json, and for every other layout the parts of each tensor. Bits are moved, and none is
computed; so the inverse of each layout is derived, and not written down.

    views               tensors made of strided blocks of others, and their inverses
    size_expressions    numbers and conditions over config.json
    tensor_expressions  the parts of one tensor, as text and as a tree
    geometry            a tree as a view
    map_parts           common parts of maps (`parts/*.toml`)
    map_file            one TOML file, checked
    map_sizes           the sizes of one model in the words of a map
    shipped             the maps that come with zerotools, and the choice for a config.json
    model_layout        a layout for one config.json: names, shapes and views, proved both ways
    stored_names        other names of a layout on disk; layers in one tensor
    layout_choice       the layout of a checkpoint
"""
