// Package fabric has the parts of a simulated network: a queue of events in the order of their
// times, links that delay, lose, mark, repeat and damage packets, a clock in virtual time, and
// a network that puts them together for tests of state machines. Its only randomness is that
// of the generators it is given.
package fabric
