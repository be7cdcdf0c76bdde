// Package srd implements SRD, the scalable reliable datagram, for the software device. A queue
// pair sends requests to any number of others. Each request is answered, and executed at most
// once; requests are executed in no particular order. The limits, flags and statuses are those
// of Amazon's EFA (efadv_create_qp_ex(3)), so that a program that is correct here is correct
// there.
//
// The package has no sockets, clocks or goroutines. Callers pass in packets and the time;
// packets, completions and deadlines come out. One lock guards all of it.
//
// # Contexts
//
// A [Context] is the state for one peer device, whatever the number of queue pairs: the
// sequence numbers of the packets between the two devices, which of them have arrived, the
// round trip, the packets under way and what may be sent to the peer. Every packet is complete
// in itself: a send is one packet, and each part of a write or read names the whole message,
// so that packets can be executed in any order. The last part of a write with immediate leaves
// when the others have been acknowledged. A responder therefore keeps no state for a message,
// and for packets only which of them it has executed: a bit for each of 1024. Once it has
// refused a packet, it also keeps the reasons, a byte each.
//
// # Tokens
//
// A device gives each peer a token, a keyed hash of the peer's address. The token changes
// every 20 s, and each device that is opened has a key of its own. Every packet carries the
// token of the sender and that of the receiver. A sender without a valid token of the receiver
// is unverified or stale: its address may be forged, or it knows an earlier device. The
// receiver replies with the right token, and keeps nothing. So forged addresses cost no
// memory, and packets for an earlier device at the address are refused.
//
// A device learns that a peer was restarted only from the reply to its own SRDHello, which
// names the peer token that the device knows. If a device gave a peer a token before it made
// the context, and would now use another, it keeps the one that the peer names.
//
// # Order
//
// Packets leave out of order on purpose: one in four waits until one to eight later ones have
// left, or until there are no more to send. A single packet that is posted while others are
// under way waits for the next, or until the others are acknowledged. The choice is
// pseudo-random from a seed, so that the same requests leave in the same order again, except
// where acknowledgements change it. A packet that is sent when nothing else is under way is
// not held.
package srd
