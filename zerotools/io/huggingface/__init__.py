"""Hugging Face model directories: config.json, the index, numbered files and sidecar files.

model_index              the index, and missing weight files
lay_out_model_directory  the weights of a model -> files, their index, sidecar files
config_json              config.json: its defaults, the dtype of the weights, tied embeddings
model_code               the Python files of a model with its own code
model_sidecars           tokenizer files and other small files of a model, and optimizer files

Imports `core`, `io.files` and `io.output`.
"""
