"""What tests share: tiny models, sample files, plain reference implementations, and programs to start and kill."""
