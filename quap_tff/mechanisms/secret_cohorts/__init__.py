"""The certified mechanism whose cohorts are drawn by secret coins: its configuration and its rounds."""
