"""How does each endpoint answer? Every handler decodes its request, makes one call, and encodes the answer."""
