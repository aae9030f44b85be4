"""Encodes an example as token ids.

Each id that the model learns has a mark.

encoders           one encoder for each kind of example and model
encoded_example    the encoded example, and how a long one is cut
chat_template      renders a chat with the tokenizer's template
template_probes    finds the answers in a rendered chat, and the fields that a template ignores
text_ids           ids of texts and their positions, faster than by the tokenizer alone
"""
