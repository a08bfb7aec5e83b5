"""What runs in vLLM's own environment: this folder goes on its `PYTHONPATH`, and nothing else of this
project.
"""
