"""Container images without a registry: recipes, layers, and locks that let concurrent builders share work."""
