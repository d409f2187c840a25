"""Making, changing and describing graphs; weights stay outside of them."""
