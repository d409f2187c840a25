"""Stored names as diffusers and transformers read them: which stored tensor each parameter is."""
