// Package transition knows which attributes each state transition of a queue pair
// takes, and names the one that is missing, not taken or out of range. It is the one
// table of that for all drivers.
package transition
