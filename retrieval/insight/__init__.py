"""Why is a document found or not, and how risky is an action?

Explanations of rankings, and assessments by similar past events.
"""
