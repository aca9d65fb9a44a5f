"""How are models made for the service?

Exporting embedding models and cross-encoders to ONNX with their manifests (`export`), and training rerankers
(`reranker`). Not here: running them (`retrieval/embedding`), or copying a collection for another model (`ingestion`).
"""
