"""TODO analysis/report/sections."""
