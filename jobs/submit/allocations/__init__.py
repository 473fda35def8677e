"""An allocation whose nodes several runs share in turns: a pilot job, or a job that the user holds."""
