// Package cm is the connection manager of the software device: communication
// management (InfiniBand Architecture Specification volume 1, "IBTA" below, chapter
// 12) with the addresses of RDMA CM (annex A11), for reliable and unreliable
// connections, and service ID resolution (SIDR) for datagrams.
//
// The package has no socket, clock or goroutine. Inputs are datagrams, calls of the user and
// the current time; outputs are datagrams, events and the next deadline:
//
//	m.Receive(mad, path, now)     // a datagram arrived at queue pair 1
//	m.Expire(now)                 // m.Deadline() has passed
//	for m.NextMAD(&d) { … }       // send these after any call; m.NoRoute if that fails
//	for m.NextEvent(&e) { … }     // deliver these after any call
//
// One goroutine at a time drives a [Manager], under the lock of its device. Times are
// durations since a moment that the caller chooses, and never decrease. Events wait in the
// manager until they are taken, and calls never deliver any themselves: an event handler may
// make any call. Take an event only when it can be handled: a waiting event keeps its place in
// the backlog, and so bounds what a peer can make the program hold.
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
// Either side calls Disconnect, and both get EventDisconnected. The answer to a DREQ
// waits for requests that the queue pair has under way ([Config.Requests]). [EventTimeWaitExit] is the
// last event of every connection, however it ended: only then may its queue pair number be
// used for another one (IBTA 12.9.8). Close ends a connection in any state; only that last
// event is reported after it.
//
// # Which events each end gets
//
// A is the active end, P the passive one. "Time-out" is the time of all retransmissions, or
// the deadline of the call if that is sooner (CauseDeadline then). C: EventConnectResponse, E:
// EventEstablished, R: EventRejected with the reason, U: EventUnreachable and D:
// EventDisconnected with the Cause. If there was a connection, EventTimeWaitExit ends the row.
// TestKilled, TestAllLost and others of this package check the table.
//
//	what happens                  A                                P
//	REQ or MRA lost               C, after a retransmission        one request
//	REP lost                      C, after a retransmission        E
//	every REP lost                R 4, or U Timeout                U Timeout, or R 4
//	RTU lost                      nothing                          E, when the REP was repeated, or at the first packet
//	every RTU lost, no packet     D REJ (4); nothing if it is lost U Timeout
//	DREQ or DREP lost             the caller of Disconnect: D DREP, after a retransmission; the other: D DREQ
//	every DREQ lost               the caller of Disconnect: D Timeout; the other: nothing
//	every DREP lost               the caller of Disconnect: D Timeout; the other: D DREQ
//	both disconnect at once       D DREQ or D DREP                 D DREQ or D DREP
//	no listener                   R 8                              nothing
//	another transport             R 9                              nothing
//	path MTU too large            R 26, Info: the largest's code   nothing
//	P rejects                     R 28, with P's private data      nothing
//	A rejects the REP             nothing                          R 28, with A's private data
//	backlog or limits full        C later, or U Timeout            nothing (counted)
//	P does not Accept in time     waits (MRA), then R 3            U Unanswered
//	A does not Establish in time  U Unanswered, or R 4             R 4, or U Timeout: the one that times out first
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
// The transport notices that a peer was killed if requests are outstanding. An idle end does
// not notice, and neither does the kernel's.
//
// # What the caller must check
//
// The caller of Receive must already have checked that the MAD came to queue pair 1 from queue
// pair 1, with the Q_Key 0x80010000 ([QKey]), in one UD SEND of 256 bytes, with a correct ICRC
// and a valid P_Key, and that Path has the addresses of the IP packet. No other queue pair may
// send with that Q_Key or as queue pair 1. The caller sends MADs by the socket that has
// Path.Local, so that the UDP source port is the endpoint's own.
//
// # Processes without UDP port 4791
//
// In RoCEv2 the source port is entropy, so responses go to port 4791 of the address, which has
// one owner, or several with different values of Config.Slot (package sharedport). A process with another port says so in the transaction ID, whose content the
// standard leaves to its sender: the upper 16 bits are the mark 0x5642, the next 16 the port,
// the other 32 random. The mark counts only if the datagram came from that UDP port. So a
// transaction ID of another implementation is mistaken for one with a probability of 2^-32,
// and no response can be directed to a port that has not sent the request. REQ, DREQ and
// SIDR_REQ carry the mark, and connections keep the port. (The CA GUID, which RDMA CM leaves
// to us too, is only in REQ and REP.) In the other direction, a dialler reaches a listener
// without port 4791 by the port in Path.Remote, which it has to know.
//
// As a result, a process without port 4791 can connect to other Verbena processes, whichever
// end has the other port, and can be reached by processes that know its port. Other
// implementations respond to port 4791. The owner of that port gets an unexpected message (and
// rejects it, so that the peer does not wait), and the dial ends in EventUnreachable with
// CauseTimeout. If Path.Local.Port() is not 4791, the error should say to stop the owner of
// port 4791 at that address, or to use another address.
//
// # The source port of a connection's packets
//
// A software device sends everything from one UDP port, from which no other program of its
// host can send. REQ and REP name it in the Q_Key, which connections do not use: the upper 16
// bits are the mark 0x5653, the lower ones the port (Path.SourcePort). The mark counts only if
// the message came from that port. From then on the messages of the connection must come from
// there too, except for a DREP and a REJ with ReasonInvalidCommID, and QPAttr returns the port
// for the queue pair. Other implementations have another Q_Key there (the kernel: 0), and send
// from any port.
//
// # Hostile peers
//
// Source addresses can be forged; a communication ID is known only to hosts that see the
// traffic.
//
//   - Communication, transaction and request IDs are unpredictable. A REP, MRA, REJ or
//     SIDR_REP counts only with the transaction ID of the message that it responds to. Every
//     message counts only from the peer's address and to ours, with both communication IDs once
//     both are known. So a host that does not see the traffic cannot end, answer or establish a
//     connection of others.
//   - A REQ proves nothing. It takes a place in the backlog of its listener and among the
//     half-open handshakes of all listeners, until the application responds and the RTU arrives,
//     or [Config.HandshakeTimeout] ends either wait. Both numbers are limited, and one address (of
//     IPv6: one /64 network) may hold only as many places as are free. Without a place, REQs are
//     dropped silently; an honest peer repeats its REQ, which may find one. So a flood from n
//     addresses leaves a 2^n-th of the places: from one address it leaves half of them, from twelve
//     it takes all 2,048 of a default backlog, and keeps others from being served while it lasts.
//     It does nothing to established connections.
//   - The device limits how many unexpected MADs (Receive) reach the manager, per source and in
//     all.
//   - The immediate response to a datagram is at most one datagram, of the same size, to the
//     address that it came from (and one probe for a connection that seems stale, see below).
//     Timers send more for each half-open handshake, and so bounded by their number: one MRA,
//     the repetitions of the REP if the application accepted (not more often than the REQ
//     asked for), and one REJ.
//   - A REQ may name the queue pair of a live connection, to make it seem stale. The kernel
//     then sends a DREQ, which ends the connection even if the REQ was forged. Here, only an
//     established connection counts, and only from the same address, CA GUID and queue pair.
//     The manager answers the REQ by REJ 10, and probes the peer of the connection by a DREQ
//     for queue pair 0. A peer that has the connection ignores it, since the queue pair does not
//     match; a peer that does not have it responds by DREP. Only that ends the connection, with
//     CauseStale. The manager sends one such probe per response time-out, which bounds what a
//     flood of forged REQs costs the peer.
//   - A packet in the place of the RTU proves less, since the sender of a forged REQ knows its
//     packet sequence number: it needs only our queue pair number. Such a connection ends like a
//     stale one, when the real peer requests one with that queue pair.
//   - An MRA asks for more time. It prolongs a wait by at most [Config.MaxServiceTimeout], no
//     more often than retransmissions are allowed, and never beyond the caller's deadline or, on
//     the passive side, the handshake's.
//   - A DREQ whose answer waits costs one timer of its connection, for half a second. Repetitions
//     are counted, and change nothing.
//   - An ICMP port unreachable message counts only if it quotes the transaction ID of a message
//     that waits for its response (PeerUnreachable).
//
// A host that sees the traffic can do anything, as with the kernel's connection manager:
// neither connection management nor RoCEv2 has any authentication.
package cm
