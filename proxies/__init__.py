"""The LLM API proxy: where a harness expects its provider, and every token is recorded."""
