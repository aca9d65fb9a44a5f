"""Which version of Nearline this is."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("nearline")  # once: it is read from the disk
