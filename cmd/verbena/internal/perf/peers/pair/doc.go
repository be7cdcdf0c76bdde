// Package pair runs a server and its client: two programs that may hang. They get a time
// limit, and process groups of their own, which are killed as a whole. Linux only.
package pair
