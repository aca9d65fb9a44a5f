"""How does Python code call a service?

The client that users import as `nearline`, with retries and bulk ingestion, and the integrations with LangChain,
LlamaIndex and Haystack. Not here: clients of other servers' APIs, which the service understands (`dialects`).
"""
