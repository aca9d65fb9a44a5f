"""Exports an encoder from any source to a folder that can be served. Start reading at `exporting`."""
