package verbs

// MWType is the type of a memory window (IBTA 10.6.7).
type MWType int

// The types of memory windows.
const (
	// MWType1 windows are for every queue pair of their protection domain. A bind gives a new
	// key, which the device chooses, and revokes the last one. A bind of no bytes only
	// revokes.
	MWType1 MWType = iota + 1
	// MWType2 windows are for the queue pair that they were bound on. The caller chooses the
	// lower 8 bits of the key. A bound window must be invalidated before it is bound again.
	// Close a window before its queue pair: MW.Close revokes the key at the latest.
	MWType2
)

// MWTypes is a set of types of memory windows.
type MWTypes uint32

// Has reports whether the set holds t.
func (s MWTypes) Has(t MWType) bool { return t > 0 && t < 32 && s&(1<<t) != 0 }

// MWTypeSet makes a set of types. Values outside 1 to 31 are left out.
func MWTypeSet(types ...MWType) MWTypes {
	var s MWTypes
	for _, t := range types {
		if t > 0 {
			s |= 1 << t
		}
	}
	return s
}

// WindowPD is a protection domain with memory windows, which grant peers access to part of a
// region and can be revoked at once (IBTA 10.6.7, ibv_alloc_mw(3)).
type WindowPD interface {
	// AllocMW allocates a window that is not bound. The error matches ErrNotSupported where
	// DeviceAttr.MWTypes lacks the type.
	AllocMW(t MWType) (MW, error)
}

// MW is a memory window.
type MW interface {
	// Type is the type given to AllocMW.
	Type() MWType
	// RKey is the key of the last bind that was posted, for requests of peers. Before the
	// first bind it grants nothing.
	RKey() uint32
	// Close revokes the window's key, and frees the window. When it has returned, the device
	// neither reads nor writes memory by the key. The window's region can be closed only after
	// that.
	Close() error
}

// MWBind holds the arguments of OpBindMW. PostSend refuses what is wrong whatever the state,
// with an error that matches ErrInvalid. What depends on the state of window and region fails
// the request with StatusMemoryWindowBindError, and the queue pair with it: a window of type 2
// that is already bound, or bytes outside the region.
type MWBind struct {
	MW MW // of the protection domain of the queue pair
	// RKey is the new key of a window of type 2: NextRKey of its present key. It is ignored
	// for type 1.
	RKey uint32
	// MR is the region, which has AccessMWBind; it is required for a bind of no bytes too. For
	// peers to write, it needs AccessLocalWrite.
	MR     MR
	Addr   uint64 // of the first byte, in the region
	Length uint64 // bytes; zero only revokes a window of type 1
	// Access is the peers' rights: AccessRemoteRead, AccessRemoteWrite, AccessRemoteAtomic,
	// and AccessZeroBased. The region need not grant the remote rights itself.
	Access Access
}

// NextRKey is a key for the next bind of a memory window of type 2 whose present key is rkey
// (ibv_inc_rkey(3)).
func NextRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }
