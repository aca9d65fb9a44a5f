"""How do documents get from files into a service?

Sending, syncing and following folders, and copying a collection for another model.
"""
