"""What do requests and answers look like as JSON?

Their types, how a body is decoded, and the one table from errors to statuses. Not here: what is done with a request
(`handlers`), the types of access keys (`access`), or other servers' types (`dialects`).
"""
