"""What goes to a language model, and what comes back?

Packing passages into a token budget, and answers with citations.
"""
