"""Encodes an example as token ids, and marks the ids that the model learns.

encoders           one encoder for each kind of example and model
encoded_example    the encoded example, and how long examples are cut
chat_template      renders a chat with the tokenizer's template
template_probes    finds the answers in a rendered chat, and the fields that a template ignores
text_ids           returns the ids of texts and their positions, faster than the tokenizer
"""
