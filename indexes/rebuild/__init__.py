"""How is a generation built? In a child process: place, train, write, measure, seal.

The service runs `wants_rebuild` -> `begin_build` -> `Rebuild.run` -> `adopt`, or `rebuild_failed` and `discard`.
"""
