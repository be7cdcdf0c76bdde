// Package roce is the software device: it ties the transport's state machines
// to UDP sockets, clocks and goroutines, behind the seam of package verbs.
//
// A device has shards: some queue pairs each, with sockets, timers and one lock. Progress is
// made under the lock by whoever is there: a program that polls a completion queue drives
// its shard inline, on its own goroutine; when nobody polls, a goroutine of the shard that
// waits at the socket does, since a passive responder must answer while its program
// sleeps. What all shards use is changed under the locks of all.
//
// A packet arrives by endpoint.receive and endpoint.handle, which finds its queue
// pair; the queue pair's path says whether it comes from the right peer, and the
// transport executes it. Queue pairs that have something to send are in a list:
// shard.transmit has each of them send to its path, which owns the output. Queue
// pairs that wait for something are in a heap by deadline: shard.expire. Nothing
// done for a pass, a packet or a timer grows with the queue pairs that are idle.
//
// Packets of SRD go to package srd instead, which finds the context of their sender, and
// their queue pair. It has a list and a heap of its own, of contexts.
package roce
