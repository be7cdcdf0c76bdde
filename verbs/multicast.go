package verbs

import "net/netip"

// MulticastQPN is the queue pair number that messages to a multicast group are sent to
// (IBTA 10.5.1).
const MulticastQPN = 0xffffff

// MulticastQP is a queue pair that can take messages of multicast groups. Those of UD
// are.
type MulticastQP interface {
	// AttachMulticast has the queue pair take a copy of every message to a group that
	// carries its Q_Key (ibv_attach_mcast(3)), of its own messages too. The LID is that of
	// the group on InfiniBand, and 0 elsewhere. On adapters, a connection manager must have
	// joined the group. Attaching twice changes nothing. Close fails with an error that
	// matches ErrInUse while the queue pair is attached. Errors match ErrInvalid, ErrLimit
	// and, where a socket of another program has the port, ErrInUse.
	AttachMulticast(group GID, lid uint16) error
	// DetachMulticast ends that. The error matches ErrInvalid if it is not attached.
	DetachMulticast(group GID, lid uint16) error
}

// MulticastCM is a connection manager that joins multicast groups.
type MulticastCM interface {
	// JoinMulticast joins a group. CMMulticastJoined reports its GID, the way there, and
	// its Q_Key; CMMulticastFailed that it cannot be joined, or was lost later
	// (rdma_join_multicast(3)). On RoCEv2 it is joined by IGMP or MLD (RFC 3376, RFC 3810),
	// its GID is its address, and its Q_Key that of RDMA_PS_UDP. Errors match ErrInvalid.
	JoinMulticast(CMJoin) (CMMulticast, error)
}

// CMJoin says which group to join.
type CMJoin struct {
	Group netip.Addr // IPv4 or IPv6
	// Local is an address of the device, of the same kind. One that is unspecified or not
	// valid is chosen by the route.
	Local netip.Addr
	// SendOnly: messages are sent to the group and not taken from it.
	SendOnly bool
}

// CMMulticast is a membership in a multicast group.
type CMMulticast interface {
	// Close leaves the group. Queue pairs are to be detached before. The manager's Close
	// does so too.
	Close() error
}
