"""Measures a running service: how many of the true neighbours it finds, for whom, how well it ranks, how fast it is.

run          one evaluation from beginning to end
sources      where the queries come from             survey       one reading of all documents, without texts
recall       exact neighbours and found ones         made_filters filters of a wanted selectivity
rankings     nDCG, MRR, recall by judgements         observing    latencies, skipped tiers, caches
intervals    how sure a number is                    floors       what is too low, what became worse
report       the shape of the result                 history      the nights before
table, page, plots, textfile                         how it is shown: terminal, HTML, SVG, Prometheus
private                                              a service for a folder that nobody serves
"""
