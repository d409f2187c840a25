"""What diffusers and transformers make of stored names: which stored tensor each parameter is."""
