"""The jobs themselves."""
