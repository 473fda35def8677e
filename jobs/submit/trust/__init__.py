"""Which code jobs execute: what this user submitted, unchanged by others, and nothing received until it is trusted."""
