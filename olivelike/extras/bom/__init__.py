"""Bills of materials of outputs, by CycloneDX."""
