"""NumPyro program in, its static description and draws out."""
