"""What does the service do in the background, and what does it keep about its use?

Jobs (rebuilds, tunings, erasures), deleting expired documents, ending quarantines, repeating frequent searches, and the
files of queries and feedback. Not here: how a rebuild works (`indexes/rebuild`), or the request log (`observe`).
"""
