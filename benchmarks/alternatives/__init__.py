"""What a user would write without optsched."""
