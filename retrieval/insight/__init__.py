"""Why was a document found or not, and how risky is an action?

Explanations of one document's way through a search, and assessments by how the most similar past events ended. Not
here: the relevance of a hit (`search`), or the quality of a whole collection (`jobs/evaluation`).
"""
