// Package roce is the software device around the state machines: it receives, drops and counts
// packets, reports the device's counters, delays acknowledgements, and sends. It connects
// package transport to UDP sockets, clocks and goroutines, and implements package verbs.
//
// A device has shards. Each shard has queue pairs, sockets, timers and one lock. A program
// that polls a completion queue drives the queue's shard inline, on its own goroutine. An engine that
// sleeps drives it from its sleep (shard.Sleep). When neither is there, a goroutine of the shard does
// (shard.run), since a passive responder must answer while its program sleeps. The type attendance
// decides who does. State that all shards use is changed under the locks of all.
//
// A packet arrives in endpoint.receive. endpoint.handle takes three steps: it finds the queue
// pair (classify), asks package admission whether the packet may come from its source
// (authenticate), and hands it to the transport (deliver). Queue pairs that have something to
// send are in a list: shard.transmit lets each of them send to its path, which owns the
// output. Queue pairs with a timer are in a heap by deadline: shard.expire. The cost of a
// round, a packet or a timer does not grow with the number of idle queue pairs.
//
// Other packages hold what a reader of the data path can skip: admission (which packets are
// accepted), local (shared memory), gsi (queue pair 1 and connection managers), congestion,
// faults, ipheader (captures).
//
// SRD packets go to package srd instead, which finds the context of their sender and their
// queue pair. It has its own list and heap, of contexts.
package roce
