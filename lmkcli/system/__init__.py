"""What the machine gives: atomic files, memory, the network switch, background streams."""
