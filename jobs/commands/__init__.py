"""Which arguments does each `nearline` command take, and what does it print?

One module a command. The work is done in the other rooms of `jobs`, or by the service over HTTP.
"""
