"""What the machine gives: atomic files, memory, processors, caches, other programs, the network switch."""
