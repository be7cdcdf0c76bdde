/* A library that the user preloads. */
int other(void) { return 43; }
