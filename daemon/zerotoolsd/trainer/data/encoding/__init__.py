"""Examples as the token ids that a model reads, with marks on the ids that it learns.

making      the encoder for a tokenizer, a job and a kind of model
chats       turns of a chat, through the tokenizer's template; answers: their positions in it
outlines    the template's text around the texts of chats with the same roles
text_ids    ids of texts, and their positions; word_ids: by words, each encoded once
plain       a prompt and its response, without a template
truncating  truncation of an example that is too long
encoded     the result for an example
"""
