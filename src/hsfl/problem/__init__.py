"""What is given: the scenario file and the numbers it stands for. numpy only, no equations."""
