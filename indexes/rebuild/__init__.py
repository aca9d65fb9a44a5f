"""How is a generation built?

In a child process: place passages in the hot and cold tiers, train, write, choose search settings, measure recall on
the build, seal. The service runs `wants_rebuild` -> `begin_build` -> `Rebuild.run` -> `adopt`, or `rebuild_failed` and
`discard`. Not here: deciding when to rebuild (`retrieval/upkeep`), or measuring a running service (`jobs/evaluation`).
"""
