"""Several tasks in one command: one run each, or one shared encoder. Start with `tasks.train_tasks`."""
