"""How is a collection backed up, restored and verified while the service runs?"""
