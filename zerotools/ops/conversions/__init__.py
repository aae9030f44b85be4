"""The commands that write a checkpoint: consolidate, reshard and convert. Each command makes a plan
first, a `Conversion`.

conversion                 the class `Conversion`, and the functions that write its output
consolidate                `zerotools consolidate`: the weights as one model
reshard                    `zerotools reshard`: the same checkpoint for another number of ranks
convert                    `zerotools convert`: the same checkpoint in another format
convert_foreign_to_job     `zerotools convert --to job`: a checkpoint that a job resumes from
weights_without_optimizer  weights for a format that holds no optimizer state
adapter_export             `consolidate --adapter-only`: the PEFT adapter of a run
merged_model               the model of a run, with its adapters merged
quantised_export           weights that are dequantised, kept quantised, or quantised for the output
missing_optimizer_options  learning rate, betas and other values that an optimizer needs to resume
"""
