// Package congestion decides how fast a queue pair may send, so that many senders to one
// receiver share the path without overloading it.
//
// A [Window] limits requests of a reliable connection, which are acknowledged. Its signals are
// congestion notifications, round-trip times and losses, after DCQCN (SIGCOMM 2015) and Swift
// (SIGCOMM 2020). A [Rate] limits packets that nothing acknowledges: responses to reads, and
// unreliable connections. Its only signal is the congestion notification; it is the reaction
// point of DCQCN.
//
// The package has no clock. Callers pass the present time, as a duration since a moment of
// their choosing; it never goes back. Both types are used by one goroutine at a time.
package congestion
