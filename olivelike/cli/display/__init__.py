"""What commands show: to people and to programs."""
