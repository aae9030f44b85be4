"""Encodes an example as token ids, and marks the ids that the model learns.

encoders           one encoder for each kind of example and model
encoded_example    the encoded example, and how long examples are cut
chat_template      renders a chat with the tokenizer's template
find_answers       finds the answers in a rendered chat, and the fields that a template ignores
token_positions    returns the ids of texts and their positions, faster than the tokenizer
"""
