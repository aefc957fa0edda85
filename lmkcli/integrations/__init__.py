"""Retrievers of other frameworks: LangChain and LlamaIndex."""
