"""From legal points to job ids: prepare all, submit all or none, and look after what was submitted."""
