"""Masks of chats under templates in the style of well-known models, against marks in them."""
