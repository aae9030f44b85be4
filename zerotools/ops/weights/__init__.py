"""Choose the tensors of an output, and their names, shapes and dtypes.

select_and_rename       select and rename tensors, and change their dtype
tied_weights            names that stand for one weight
name_check              compare names and shapes with those that config.json needs
try_transformers_load   let transformers try to load the names and shapes
model_to_match          the model that an export must match
convert_layout          convert a checkpoint to the layout of another program
match_names_to_layout   find the layout that a checkpoint has, also under other names
unwrap_names            remove the parts of names that wrappers such as FSDP add
check_layout_map        check a file of layouts
megatron_run_arguments  the arguments of a training script, which a layout may need
rearrange_tensors       tensors that are made of strided parts of other tensors
restore_hub_layout      a job's model under the names and in the shapes of the Hub
add_base_model_weights  the model that an adapter was trained on
lora_merge              merge the adapters of a LoRA run into its weights
adapted_model           the weights that an adapter changes, and the change of each
adapter_arithmetic      compute a weight with an adapter merged
adapter_config          adapter_config.json
convert_adapter_layout  convert an adapter to another layout
merged_config           config.json of a model with a merged adapter

Of `ops` it imports `execution` and `quantised`.
"""
