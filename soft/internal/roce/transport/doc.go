// Package transport implements the requester and responder state machines of the InfiniBand
// transport (IBTA chapter 9), with retransmission, and the check of every memory key.
//
// The package has no socket, clock or goroutine. Callers pass in posted work, packets and the
// present time; packets, completions and the next deadline come out. A queue pair is used by
// one goroutine at a time, under the lock of its device. Times are durations since a moment of
// the caller's choosing.
package transport
