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
// the Socket, since a socket bound to a host's address receives nothing for a group;
// [Socket.Join] adds one.
//
// # Source
//
// A port that is bound at one address is not protected: a program without privileges can bind
// the same port at another address of the host, and send with the first address as its source
// (IP_PKTINFO in ip(7)). So [Config] can make packets leave from a port that is bound at all
// addresses, and shared with no other program: a separate port (SendPorts), or the socket's
// own (Exclusive). The source address is then chosen for each packet. A separate port has
// another socket, which receives only error reports. On systems other than Linux it is bound
// at the address alone.
//
// # Goroutines
//
// At a time, one goroutine may send (Packet, Pending, Flush), one may receive (Receive,
// Unreachable, Join, Leave), and one may wait for several sockets ([WaitSet]); the three may run
// concurrently. SetFilter, Dropped, Close, Addr and Features may be called from any goroutine at any
// time. The package starts a goroutine of its own only for [Config.Portable]
// sockets, which are the only ones outside Linux; it ends before Close returns.
package link
