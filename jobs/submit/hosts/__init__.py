"""What the runs of a site say about its hosts: which fail, which are slow, which are good."""
