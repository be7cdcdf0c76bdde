// Package cm is the connection manager of the software device: communication
// management (InfiniBand Architecture Specification volume 1, "IBTA" below, chapter
// 12) with the addresses of RDMA CM (annex A11), for reliable and unreliable
// connections, and service ID resolution (SIDR) for datagrams.
//
// Nothing here has a socket, a clock or a goroutine. Datagrams, calls of the user and
// the present time go in; datagrams, events and the next deadline come out:
//
//	m.Receive(mad, path, now)     // a datagram came to queue pair 1
//	m.Expire(now)                 // m.Deadline() has come
//	for m.NextMAD(&d) { … }       // to be sent, after any call; m.NoRoute if that is not possible
//	for m.NextEvent(&e) { … }     // to be delivered, after any call
//
// A [Manager] is driven by one goroutine at a time, under the lock of its device.
// Times are durations since a moment of the caller's choosing, and never run backwards.
// Events wait in the manager until they are taken, and calls never deliver any
// themselves: whoever handles one may call anything. Take an event only when it can be
// handled: one that waits keeps its place in the backlog, and so bounds what a peer can
// make the program hold.
//
// # A connection
//
// The active side, in the standard's words (IBTA 12.9.7):
//
//	Connect             REQ sent         the caller has made a queue pair
//	EventConnectResponse  REP received   move the queue pair to RTR and RTS by QPAttr, then
//	Establish           RTU sent         established
//
// and the passive side:
//
//	EventConnectRequest REQ received     make a queue pair, move it to RTR and RTS by
//	                                     QPAttr (after Prepare), then
//	Accept              REP sent         or Reject
//	EventEstablished    RTU received, or CommunicationEstablished was called
//
// Either side calls Disconnect, and both get EventDisconnected. [EventTimeWaitExit] is the
// last event of every connection, whatever became of it: from then on its queue pair
// number may be used for another one, and not before (IBTA 12.9.8). Close gives a
// connection up in any state; nothing but that last event is reported after it.
//
// # What each end is told
//
// A is the active end, P the passive one. "Time-out" is the time that all retransmissions
// take, or the deadline of the call if that is sooner (CauseDeadline then). C:
// EventConnectResponse, E: EventEstablished, R: EventRejected with the reason, U:
// EventUnreachable and D: EventDisconnected with the Cause. Wherever there was a
// connection, EventTimeWaitExit ends the row. TestKilled, TestAllLost and others of this
// package check it.
//
//	what happens                  A                                P
//	REQ or MRA lost               C, after a retransmission        one request
//	REP lost                      C, after a retransmission        E
//	every REP lost                R 4, or U Timeout                U Timeout, or R 4
//	RTU lost                      nothing                          E, when the REP was repeated, or at the first packet
//	every RTU lost, no packet     D REJ (4); nothing if it is lost U Timeout
//	DREQ or DREP lost             who disconnects: D DREP, after a retransmission; the other: D DREQ
//	every DREQ lost               who disconnects: D Timeout; the other: nothing
//	every DREP lost               who disconnects: D Timeout; the other: D DREQ
//	both disconnect at once       D DREQ or D DREP                 D DREQ or D DREP
//	nobody listens                R 8                              nothing
//	another transport             R 9                              nothing
//	path MTU too large            R 26, Info: the largest's code   nothing
//	P rejects                     R 28, with P's private data      nothing
//	A rejects the REP             nothing                          R 28, with A's private data
//	backlog or limits full        C later, or U Timeout            nothing (counted)
//	P does not Accept in time     waits (MRA), then R 3            U Unanswered
//	A does not Establish in time  U Unanswered, or R 4             R 4, or U Timeout: whose patience ends first
//	A gives up, or closes         U Deadline; nothing if closed    R 4
//	no route to P                 U NoRoute, at once               -
//	P's port is closed            U PortUnreachable                -
//	P's host is gone              U Timeout                        -
//	P killed before it accepts    U Timeout, or PortUnreachable    -
//	P killed after the REP        C; as when established           -
//	A killed before the RTU       -                                U Timeout, or PortUnreachable
//	one killed when established   the other: nothing, until it disconnects (D Timeout, or PortUnreachable), or
//	                              the killed one comes back with the same queue pair number (D Stale)
//	A comes back, its old         R 10, and D Stale at P; the next dial succeeds
//	connection is there
//
// The transport notices a peer that was killed if it has something outstanding; an idle end
// does not, and neither does the kernel's.
//
// # What the device sees to
//
// The manager presumes of what it is given: it came to queue pair 1 from queue pair 1,
// with the Q_Key 0x80010000 ([QKey]), in one UD SEND of 256 bytes, with a good ICRC and a
// valid P_Key; Path has the addresses of the IP packet. No other queue pair may send
// with that Q_Key or as queue pair 1. It sends by the socket that has Path.Local, so that
// the UDP source port is the endpoint's own.
//
// # Processes without UDP port 4791
//
// A RoCEv2 source port is entropy, so an answer goes to port 4791 of the address, and that
// has one owner. A process with another port says so in the transaction ID, which means
// nothing to anybody but its maker: the upper 16 bits are the mark 0x5642, the next 16 the
// port, the other 32 random. It counts only if the datagram came from that very UDP port,
// so foreign transaction IDs cannot be mistaken for it but with a probability of 2^-32,
// and nobody can have an answer sent to a port that has not sent the question. REQ, DREQ
// and SIDR_REQ carry it (the CA GUID, which RDMA CM leaves to us too, is in REQ and REP
// only); connections keep it. The other way, a listener without port 4791 is reached by
// the port in Path.Remote, which the dialler has to know.
//
// What follows: a process without port 4791 can connect to other Verbena processes, by
// either end's port; it can be reached by those that know its port. Foreign peers answer
// to port 4791, so the owner gets what it was not waiting for (and rejects it, so that the
// peer does not wait), and a dial ends in EventUnreachable with CauseTimeout. If
// Path.Local.Port() is not 4791, the error should say that the owner of port 4791 at that
// address has to be stopped, or another address used.
//
// # Which port the packets of a connection come from
//
// A software device sends everything from one UDP port, which nobody else of its host can send
// from. It says so in REQ and REP, in the Q_Key, of which connections make no use: the upper
// 16 bits are the mark 0x5653, the lower ones the port (Path.SourcePort). It counts only if the
// message has come from that very port. From then on the messages of the connection have to
// come from there too, except for a DREP, and QPAttr has the port for the queue pair. Foreign
// peers have another Q_Key there (the kernel: 0), and send from any port.
//
// # Hostile peers
//
// Source addresses can be forged; only who sees a communication ID knows it.
//
//   - Communication, transaction and request IDs are unpredictable. A REP, MRA, REJ or
//     SIDR_REP counts only with the transaction ID of what it answers, and every message
//     only from the peer's address, and to ours, with both communication IDs where both
//     are known. So nobody who does not see the traffic can end, answer or establish a
//     connection of others.
//   - A REQ proves nothing. It holds a place in the backlog of its listener and among
//     the half-open handshakes of all, both limited, until the application answers and
//     the RTU comes, or [Config.HandshakeTimeout] ends either wait. When there is no
//     place, REQs are dropped without a word, and the honest peer's next one may find one.
//     So a flood can keep others from being served for as long as it lasts, and can do
//     nothing to what is established.
//   - The device limits how many MADs that were not expected (Receive) reach the manager, by
//     source and in all.
//   - What is sent at once to a datagram is at most one datagram, of the same size, to the
//     address that it came from (and, of what seems stale, one question, as below). By
//     timers follow, for each half-open handshake and so bounded by their number, one MRA,
//     the repetitions of the REP if the application accepted (not more often than the REQ
//     asked for), and one REJ.
//   - A REQ may name the queue pair of a live connection, to have it believed stale; the
//     kernel then sends a DREQ, which ends the connection if the REQ was a lie. Only an
//     established connection counts here, and only from the same address, CA GUID and
//     queue pair. The REQ is answered by REJ 10, and the peer of the connection is asked
//     whether it knows the connection: by a DREQ for queue pair 0, which a peer that has the
//     connection ignores (the queue pair does not match) and one that has not answers by
//     DREP. Only that ends it, with CauseStale. One such question is asked in a response
//     time-out, so that a flood of lies costs the peer no more than that.
//   - A packet in the place of the RTU proves less, as who forged the REQ knows its packet
//     sequence number: it takes our queue pair number. Such a connection ends as a stale one
//     does, when the peer that it pretends to be asks for one with that queue pair.
//   - An MRA asks for patience, so it prolongs a wait by no more than
//     [Config.MaxServiceTimeout], no more often than retransmissions are allowed, and never
//     beyond the caller's deadline or, passively, the handshake's.
//   - A port-unreachable message of ICMP is believed only while something is waited for
//     (PeerUnreachable); the device passes on what the kernel has checked against its socket.
//
// Whoever sees the traffic can do as they like, as with the kernel's: neither
// connection management nor RoCEv2 has any authentication.
package cm
