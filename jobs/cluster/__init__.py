"""Where do the services of a cluster run, and what if one of them, or a machine, is lost?

Two state machines that know neither Ray nor processes: `controller.py` decides which machine has which service, and
`agent.py` starts, watches and ends those of one machine. `actors.py` runs them in Ray. Searches and data never pass
here. Not here: shards and searches of several of them (`retrieval/cluster`).
"""
