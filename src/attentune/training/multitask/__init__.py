"""Several tasks in one command: a run each, or one encoder that all share. Start with `tasks.train_tasks`."""
