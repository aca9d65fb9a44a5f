"""How is the service configured, and how does work end early?

Settings and the file they come from, the memory and cores of a container, cancellation and deadlines, and single
flight. Not here: anything that knows a request, a model or a collection.
"""
