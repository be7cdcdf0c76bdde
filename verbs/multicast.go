package verbs

import "net/netip"

// MulticastQPN is the queue pair number in messages to a multicast group (IBTA 10.5.1).
const MulticastQPN = 0xffffff

// MulticastQP is a queue pair that can receive messages of multicast groups. The queue pairs
// of UD implement it.
type MulticastQP interface {
	// AttachMulticast makes the queue pair receive a copy of every message to a group that
	// carries its Q_Key (ibv_attach_mcast(3)), its own messages included. lid is the group's
	// LID on InfiniBand, and 0 elsewhere. On adapters, a connection manager must have joined
	// the group. Attaching twice changes nothing. While the queue pair is attached, Close
	// fails with an error that matches ErrInUse. Errors match ErrInvalid, ErrLimit and, where
	// a socket of another program has the port, ErrInUse.
	AttachMulticast(group GID, lid uint16) error
	// DetachMulticast undoes AttachMulticast. The error matches ErrInvalid if the queue pair
	// is not attached.
	DetachMulticast(group GID, lid uint16) error
}

// MulticastCM is a connection manager that joins multicast groups.
type MulticastCM interface {
	// JoinMulticast joins a group (rdma_join_multicast(3)). CMMulticastJoined reports the
	// group's GID, address and Q_Key. CMMulticastFailed reports that the group cannot be
	// joined, or was lost later. On RoCEv2, IGMP or MLD joins the group (RFC 3376, RFC 3810),
	// its GID is its IP address, and its Q_Key that of RDMA_PS_UDP. Errors match ErrInvalid.
	JoinMulticast(CMJoin) (CMMulticast, error)
}

// CMJoin says which group to join.
type CMJoin struct {
	Group netip.Addr // IPv4 or IPv6
	// Local is an address of the device, IPv4 or IPv6 as Group is. The route chooses it if it
	// is unspecified or not valid.
	Local netip.Addr
	// SendOnly: the program only sends to the group, and receives nothing from it.
	SendOnly bool
}

// CMMulticast is a membership in a multicast group.
type CMMulticast interface {
	// Close leaves the group. Detach queue pairs before. The manager's Close leaves all
	// groups.
	Close() error
}
