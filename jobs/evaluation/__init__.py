"""How good are the answers of a running service?

Recall (the share of true neighbors it finds, by cohort), ranking quality by judgments, latencies; and whether a learned
ranking is a gain. Not here: the recall of a new generation before it is adopted (`indexes/rebuild`), or comparisons
with other libraries (`jobs/benchmark`).

measure      one evaluation from start to end: its options in, its report out
asking       sends queries at a bounded rate and records their latencies
queries      where the queries come from             survey       one scan of all documents; filters made from it
recall       exact neighbors against those found     rankings     nDCG, MRR and recall by judgments
relevance    how far the relevance of hits holds; a calibration of a collection's own
report       the shape of the result, with intervals sections     its tables, for terminal and page
learning     finds the ranking settings that judgments support
verdict      floors, regressions, and the history
page         the report as HTML with plots           textfile     the report for Prometheus
private      a service for a folder that no service holds
"""
