"""The service: turns a request into an answer over HTTP.

Its packages, each of which imports only from those before it: base, wire | clients, access, cache, embedding,
admission, documents, search, processes, context, insight, upkeep, observe, handlers, dialects, cluster, server. `ui/`
holds the files of the page.
"""
