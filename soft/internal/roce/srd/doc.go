// Package srd is the scalable reliable datagram of the software device: requests that
// are answered, each executed at most once and in no order, from a queue pair to any
// number of others. Its limits, flags and statuses are those of Amazon's EFA
// (efadv_create_qp_ex(3)), so that a program that is right here is right there.
//
// There are no sockets, clocks or goroutines here: packets and the time go in, packets,
// completions and deadlines come out, all under one lock.
//
// # Contexts
//
// A [Context] is what two devices share, whatever the number of their queue pairs: the
// sequence numbers of the packets from one to the other, which of them have arrived,
// the round trip, the packets under way and what the peer may be sent. Every packet
// stands by itself: a send is one packet, and each part of a write or read carries the
// message that it is of, so that packets are executed in whichever order they come. The
// last part of a write with immediate leaves when the others have been acknowledged. So
// a responder keeps nothing for a message, and of packets only which it has executed:
// two bits each for at most 960.
//
// # Tokens
//
// A device gives each peer a token, a keyed hash of the peer's address that changes
// every 20 s and with each device that is opened there. Every packet carries that of the
// sender and that of the receiver. Who does not know the receiver's token has not been
// reached at the address that it claims, or speaks to a device that is gone: it is told
// the token, and nothing is kept. So made-up addresses cost no memory, packets of an
// earlier device at the address are refused, and a peer that has been restarted is
// noticed: only the answer to a question of one's own (SRDHello) says so. The question
// names the token that is known. A device that has told a peer one token before it made the
// context, and would use another now, keeps to the one that the peer names.
//
// # Order
//
// Packets leave in an order that is different on purpose: one in four waits until one
// to eight later ones have left, or until there are no more to be sent. One that would leave
// by itself while others are under way waits for the next, or until they are acknowledged.
// The draws come from a seed, so that the same requests leave in the same order again as
// far as acknowledgements do not interfere. What is sent when nothing else is under way is
// not held.
package srd
