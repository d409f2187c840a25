"""From a request to pictures: conditioning, denoising, guidance, the VAE, the safety checker."""
