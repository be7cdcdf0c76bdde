// Package congestion decides how fast a queue pair may send, so that many senders to
// one receiver share the path instead of overrunning it.
//
// A [Window] bounds what is acknowledged: the requests of a reliable connection. Its signals
// are congestion notifications, the round trip, and losses, after DCQCN (SIGCOMM 2015) and
// Swift (SIGCOMM 2020). A [Rate] bounds what is not: responses to reads, and unreliable
// connections. It knows notifications alone, and is the reaction point of DCQCN.
//
// There is no clock here: the present time goes in, as a duration since a moment of the
// caller's choosing, and never goes back. Both types are used by one goroutine at a time.
package congestion
