"""Examples as the ids that a model reads, each with what the model is to say of them.

making      the way in which a tokenizer, a job and a kind of model read examples
chats       turns of a chat, through the tokenizer's template; answers: where they lie in it
outlines    what a template puts around the texts of chats of the same roles
text_ids    ids of texts, and where they lie; word_ids: by words, each encoded once
plain       a prompt and its response, without a template
truncating  what an example that is too long keeps
encoded     what comes of an example
"""
