"""The pages of the documentation at a terminal.

- `topics`       which pages there are, and where: in the wheel, or in a checkout
- `plain_text`   a page of Markdown as text for people
"""
