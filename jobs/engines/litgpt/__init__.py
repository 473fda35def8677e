"""LitGPT's own scripts, called as its users call them; support.py and call.py need no torch."""
