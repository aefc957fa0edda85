"""The machine: atomic files, locks, guarded reading, hardware, caches, programs and the network switch."""
