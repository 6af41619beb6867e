"""Office programs: small business questions, answered by a program that a machine of ours runs."""
