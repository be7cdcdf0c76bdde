// Package fabric has the parts of a simulated network: a queue of events in the order of their
// times, and links that delay, lose, mark, repeat and damage packets. Its only randomness is that
// of the generators it is given.
package fabric
