"""LitGPT's own scripts, called as its users call them."""
