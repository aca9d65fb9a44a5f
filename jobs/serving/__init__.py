"""How does a service run in a process, and how does it stop?

The process's signals, TLS, log lines, the watchdog, and services as child processes for demos and tests. Not here: the
application that is served (`retrieval/server`).
"""
