"""Why is a passage found or not, and is an answer in the collection?

Explanations of rankings, and the verdict on a query.
"""
