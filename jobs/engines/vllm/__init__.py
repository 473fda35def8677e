"""Servers of the OpenAI interface, which serve a model and train nothing."""
