"""How is the service configured, and how does work end early?

Settings and the file they come from, the memory and cores of a container, cancellation, and single flight.
"""
