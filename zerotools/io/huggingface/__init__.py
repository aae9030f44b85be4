"""Hugging Face model directories: config.json, the index, numbered files and sidecar files.

model_directory  the index, and the weight files of one model
config_json      config.json: its defaults, the dtype of the weights, tied embeddings
model_sidecars   tokenizer files and other small files of a model, and optimizer files

Imports `core`, `io.files` and `io.output`.
"""
