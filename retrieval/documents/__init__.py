"""What happens to a document between the request and the log?

It is checked, compared with the stored one (unchanged documents are skipped), cut into passages, embedded, and written;
also which metadata is accepted, and the text of uploaded files. Not here: commits to disk (`indexes/log`), or the model
(`embedding`).
"""
