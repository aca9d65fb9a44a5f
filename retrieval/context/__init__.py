"""What goes to a language model, and what comes back?

Packing passages into a budget of tokens, and answers with citations.
"""
