"""The borders of graphs: inputs and outputs as clients know them, with their names, types and ranks."""
