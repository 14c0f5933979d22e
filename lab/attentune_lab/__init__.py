"""What reviewers of papers need of Attentune and users do not; lab/README.md lists it."""
