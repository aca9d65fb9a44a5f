"""Measurements of a running service on this machine, and of what people use instead, in one report."""
