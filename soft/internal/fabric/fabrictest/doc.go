// Package fabrictest has a clock in virtual time, and a network of simulated links, for tests of
// state machines. Its only randomness is that of the generators it is given.
package fabrictest
