"""What keeps a collection in shape?

Erasing documents from all files, and tuning its settings.
"""
