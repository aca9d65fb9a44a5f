"""Nearline's index library beside others, on the same vectors and queries in one run, each in processes of its own."""
