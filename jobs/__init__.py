"""The commands that run beside the service: export, ingest, reindex, evaluate, bench, demo; and the command line."""
