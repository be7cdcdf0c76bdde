// Package transport holds the requester and responder state machines of the
// InfiniBand transport (IBTA chapter 9) as the software device speaks it.
//
// Nothing here has a socket, a clock or a goroutine: posted work, packets and
// the present time go in; packets, completions and the next deadline come out.
// A queue pair is driven by one goroutine at a time, under the lock of its
// device. Times are durations since a moment of the caller's choosing.
package transport
