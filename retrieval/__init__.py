"""The service: turns a request into an answer over HTTP.

Its rooms, each of which imports only from those before it: base, wire | clients, access, cache, embedding, admission,
documents, search, context, insight, upkeep, observe, handlers, dialects, server. `ui/` holds the files of the page.
"""
