"""Lightning callbacks: curricula, exports, guards, metrics during a fit."""
