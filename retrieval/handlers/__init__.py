"""What does each path of Nearline's own API do?

A handler decodes the request, calls one thing, and encodes the answer; cursors are encoded here. Also server-sent
events, the page's files, and which browser origins are allowed. Not here: the shapes of requests (`wire`), or the table
of routes (`server`).
"""
