"""The command line and the jobs behind it: export, ingest, reindex, evaluate, bench, demo."""
