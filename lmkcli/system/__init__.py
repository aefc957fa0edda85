"""What the machine gives: files that are whole or not there, memory, the network switch, threads."""
