"""All layouts of a model on some nodes, by prediction: `plan --search`, and runs to calibrate with."""
