"""What results are kept under: keys, and by what code and tools a result is made."""
