"""The jobs themselves: training by each engine, and evaluation."""
