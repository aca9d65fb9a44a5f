"""How does a service run in a process, and stop?

Signals, TLS, log lines, the watchdog, and services as child processes.
"""
