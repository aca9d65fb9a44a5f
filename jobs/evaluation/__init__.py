"""Measures a running service: the share of true neighbors it finds, by cohort; how well it ranks; how long it takes.

measure      one evaluation from start to end: its options in, its report out
asking       sends queries at a bounded rate and records their latencies
queries      where the queries come from             survey       one scan of all documents; filters made from it
recall       exact neighbors against those found     rankings     nDCG, MRR and recall by judgments
relevance    how far the relevance of hits holds; a calibration of a collection's own
report       the shape of the result, with intervals sections     its tables, for terminal and page
verdict      floors, regressions, and the history
page         the report as HTML with plots           textfile     the report for Prometheus
private      a service for a folder that nobody serves
"""
