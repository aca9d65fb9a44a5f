"""What goes into a prompt, and what does the language model answer?

Packing passages into a budget of tokens, frames and citations, several queries as one ranking, and answers of a
language model. Not here: finding the passages (`search`), or the text around one hit (`indexes/reading`).
"""
