"""The formats that `report --format` writes, one file each."""
