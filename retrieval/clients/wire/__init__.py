"""The wire types of the service, as type checkers know them. Made by `tests/support/wire_types.py`."""
