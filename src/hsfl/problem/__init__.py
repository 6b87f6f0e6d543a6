"""What is given, in numbers: machines, layer profiles, constants and the form of a plan. numpy only, no equations."""
