"""The keys of each kind of work, below the schema: dataclasses without any other module."""
