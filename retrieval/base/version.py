"""The version of Nearline."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("nearline")  # read once, because it comes from the disk
