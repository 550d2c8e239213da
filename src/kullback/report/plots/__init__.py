"""The plots of each subject."""
