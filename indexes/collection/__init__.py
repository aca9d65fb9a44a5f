"""What can be done with one collection?

Write, delete, search a snapshot, rebuild and adopt a generation.
"""
