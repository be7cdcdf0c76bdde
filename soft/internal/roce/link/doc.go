// Package link carries RoCEv2 packets over an ordinary UDP socket.
//
// A [Socket] is not connected and sets the don't-fragment bit, so the IPv4
// identification of a packet sent alone is 0 and the invariant CRC can be
// computed before sending (InfiniBand Architecture Specification, annex A17).
// Where the kernel has them, the socket uses segmentation offload (UDP_SEGMENT
// in udp(7)), receive coalescing (UDP_GRO) and batched system calls
// (sendmmsg(2), recvmmsg(2)); [Socket.Features] lists those in use.
//
// Packets to one destination form a train: all of one size but the last, which
// may be shorter. A train leaves in one piece and its packets carry the
// identifications 0, 1, 2 and so on; [Socket.Packet] returns that number.
//
// Packets of one train have one [Header]. Multicast groups have sockets of their own inside
// the Socket, since one that is bound to the address of a host gets nothing for a group;
// [Socket.Join] adds one.
//
// # Source
//
// A port that is bound at one address protects nothing: a program without privileges that has
// the same port at another address of the host sends as from the first (IP_PKTINFO in ip(7)).
// So [Config] can have packets leave from a port that is bound at all addresses, and shared
// with nobody: one of its own (SendPorts), or that of the socket (Exclusive). The source address
// is chosen for each packet then. One of its own has another socket, which receives nothing but
// reports. Elsewhere than on Linux it is bound at the address alone.
//
// # Goroutines
//
// The caller must have one goroutine at a time send (Packet, Pending, Flush), one at a time
// receive (Receive, Unreachable, Join, Leave), and one at a time wait (Wait). The three may run at
// the same time as each other. Interrupt, SetDeadline, SetFilter, Dropped, Close, Addr and
// Features may be called from any goroutine at any time. The package starts a goroutine of its
// own only for [Config.Portable] sockets, which are the only ones outside Linux; it ends before
// Close returns.
package link
