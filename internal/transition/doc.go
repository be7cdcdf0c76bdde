// Package transition knows which attributes the state transitions of a queue
// pair take, and names the one that is missing, out of place or out of range.
package transition
