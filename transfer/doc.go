// Package transfer moves data between the memories of many hosts, in batches of reads, writes
// and atomics: blocks of a KV cache, tensors, pages of a store. An [Agent] publishes memory by
// name, connects to other agents by address, and looks up what they publish.
//
//	agent, err := transfer.Open(transfer.Config{Devices: []verbs.Device{dev}, Listen: ":7600"})
//	blocks, err := agent.Register("blocks", memory, mmap.LocalReadWrite|mmap.RemoteRead)
//	peer, err := agent.Dial(ctx, "192.0.2.7:7600")
//	theirs, err := peer.Segment(ctx, "blocks")
//
//	var b transfer.Batch
//	for _, n := range wanted {
//		b.Read(theirs, n*size, memory[n*size:][:size])
//	}
//	h, err := agent.Submit(&b)
//	err = h.Wait(ctx)
//
// # Batches
//
// Items of a batch run in any order, at the same time, to any number of peers. What does not fit
// into the queues of the devices waits: batches of higher [Priority] first, peers in turn, and the
// batches to one peer in the order of Submit. An item that is larger than Config.Piece travels in
// pieces, over all devices that reach the peer. An item that fails does not end the others.
//
// A note ([Batch.Note]) tells the peer's program, in [Agent.Note], that the items of a batch are done. It comes
// exactly once, after their data, unless its item fails with [ErrUnknown].
//
// From Submit to the end of the [Handle], no byte of the items may be touched here, and what they write
// is undefined at the peer. Then no device here touches the memory any more, also after
// [Handle.Cancel].
//
// # Memory
//
// Slices of items are parts of what [Agent.Register] was called for or, with Config.CacheBytes, any memory: the agent
// then registers it at its first use. Register is faster for memory that is used again and again, and the only way for
// memory that is unmapped while the agent is open. Huge pages, and memory near a device, come from [mmap.New]: register
// its Bytes.
//
// # Failures
//
// Connections are made when they are needed, a few at a time. When one ends, its reads and writes are repeated, on
// the next connection to the peer or through another device, after a pause that grows while connections do not
// last; a write only when the peer has confirmed that the old connection can no longer write. An atomic
// that the device had fails with [ErrUnknown]. Items fail when no device can connect within
// Config.DialTimeout, one after the other. That a peer has died is noticed when its connection fails, after some seconds
// (Config.SilenceTimeout); until then the items wait.
//
// When a program ends without [Agent.Close], its requests can be in a peer's device that stands still, and take effect
// when that goes on, also after the program was started again: an agent cannot end connections of an earlier one.
//
// An agent has an epoch, which changes when it is opened again. A [RemoteSegment] of an earlier epoch
// is not used: its items fail with [ErrStale], at Submit or later. The Peer remains: look the segment up
// there again.
//
// # SRD
//
// Where devices have no RC, as an EFA, or with Config.Transport, agents use SRD. Then an address is IP:PORT/QPN
// ([Agent.Addrs]), and an agent that is opened again has another one. There are no atomics.
//
// Unlike a connection of RC, an SRD endpoint is for all peers, so its end cannot confirm that the writes of one of them
// can no longer arrive. When a peer cannot be reached, a write or note that the device had fails with [ErrUnknown].
// The note can come later, and the write can take effect until the peer closes the segment: use another place in it.
// Reads, and what no device had, are repeated as with RC.
//
// # Trust
//
// Who can dial an agent gets the keys to what it publishes. Nothing is encrypted.
//
// # Goroutines
//
// All functions are for any goroutine, but a Batch is for one at a time. Each device has an engine
// (package pe) on a goroutine of the agent. Programs wait for agents on channels, so a simulation repeats its runs only
// with sim.CheckSerial.
package transfer
