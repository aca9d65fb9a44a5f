"""Fakes and real helpers that tests share; never imported by the service."""
