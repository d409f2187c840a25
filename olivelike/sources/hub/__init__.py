"""Pipelines and files on the Hugging Face hub."""
