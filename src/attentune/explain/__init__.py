"""Why did it say that? How much each token mattered, by a table of methods behind one interface."""
