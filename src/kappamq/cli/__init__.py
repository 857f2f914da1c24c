"""The command line: one file for each noun. Heavy imports wait until a command runs, so that every start is quick."""
