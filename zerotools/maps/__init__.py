"""Layout maps describe how programs that train or serve models name and arrange the same weights.

A family of models (`families/*.toml`) lists its tensors in the Hub's layout, `hf`, with shapes from
config.json. For every other layout, it lists the parts that make up each tensor. Bits are moved,
but no value is computed. So the inverse of each layout is derived and need not be written down.

    views               tensors made of strided parts of other tensors, and the inverse
    expressions         numbers, conditions and tensor expressions of a map
    expression_views    converts a tensor expression to a view
    map_file            one TOML file of a family, checked; parts that families share
    map_variables       the sizes of one model, and settings in config.json that no shape shows
    shipped_maps        the maps that come with zerotools, and the one for a config.json
    model_layout        a layout for one config.json: names, shapes and views, proved both ways
    match_stored_names  matches names in a checkpoint with a layout, also if layers are stacked
    detect_layout       the layout that a checkpoint has
    hub_tensor_names    names and shapes of a model's tensors on the Hub
    transformers_names  models with different names in transformers' memory and on the Hub
"""
