// Package pair runs a server and its client, two programs that nobody has to trust to end: they
// get a time limit, and process groups of their own, which are killed as a whole. Linux only.
package pair
