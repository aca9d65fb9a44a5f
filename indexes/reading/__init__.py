"""What else is read from a collection, besides searching it?

Facets, scrolling, and the text around a passage.
"""
