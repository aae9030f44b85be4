"""Layout maps: how programs that train or serve models name and arrange the same weights.

A family of models (`families/*.toml`) has its tensors as the Hub has them, `hf`, with their shapes
by config.json, and for every other layout what each of its tensors is made of. Bits are moved, and
none is computed; so each layout can be read the other way round, and nobody writes that down.

    views               tensors made of strided blocks of others, and their inverses
    size_expressions    numbers and conditions over config.json
    tensor_expressions  what one tensor is made of, as text and as a tree
    geometry            a tree as a view
    map_parts           what maps have in common, said once (`parts/*.toml`)
    map_file            one TOML file, checked
    map_sizes           the sizes of one model in the words of a map
    shipped             the maps that come with zerotools, and which one fits a config.json
    model_layout        a layout for one config.json: names, shapes and views, proved both ways
    stored_names        other names under which a layout may lie on disk; layers in one tensor
    layout_choice       which layout a checkpoint has
"""
