"""Which arguments does each `nearline` command take, and what does it print?

One module per command. The work is done by the other packages of `jobs`, or by the service over HTTP.
"""
