"""The commands of slurmscale: one entry per command, in files by group; `grammar` makes argparse's parser of them."""
