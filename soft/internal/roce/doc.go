// Package roce is the software device: it ties the transport's state machines
// to UDP sockets, clocks and goroutines, behind the seam of package verbs.
//
// A device has shards. Each has some queue pairs, with sockets, timers and one lock. A program
// that polls a completion queue drives its shard inline, on its own goroutine. When no program
// polls, a goroutine of the shard that waits at the socket drives it, since a passive responder
// must answer while its program sleeps. What all shards use is changed under the locks of all.
//
// A packet arrives by endpoint.receive. endpoint.handle takes three steps: it finds the queue pair
// (classify), asks package admission whether the packet may come from there (authenticate), and
// hands it to the transport (deliver). Queue pairs that have something to send are in a list:
// shard.transmit lets each of them send to its path, which owns the output. Queue pairs that wait
// for something are in a heap by deadline: shard.expire. Nothing done for a pass, a packet or a
// timer grows with the queue pairs that are idle.
//
// Other packages hold what can be passed by: admission (which packets are taken), local (shared
// memory), gsi (queue pair 1 and connection managers), congestion, faults, ipheader (captures).
//
// Packets of SRD go to package srd instead, which finds the context of their sender, and
// their queue pair. It has a list and a heap of its own, of contexts.
package roce
