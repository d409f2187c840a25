"""Networks on strips of a picture, with the statistics of the whole picture."""
