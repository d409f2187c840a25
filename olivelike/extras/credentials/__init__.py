"""Content Credentials of pictures, as C2PA has them."""
