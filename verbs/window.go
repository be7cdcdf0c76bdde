package verbs

// MWType is the type of a memory window (IBTA 10.6.7).
type MWType int

// The types of memory windows.
const (
	// MWType1 windows are for every queue pair of their protection domain. A bind gives
	// a new key, which the device chooses, and ends what the last one granted; one of
	// no bytes only ends it.
	MWType1 MWType = iota + 1
	// MWType2 windows are for the queue pair that they were bound on. The caller
	// chooses the key, of which the lower 8 bits are free; a bound window has to be
	// invalidated before it is bound again. Close it before the queue pair: at the
	// latest, it ends what the window grants.
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

// WindowPD is a protection domain with memory windows, which lend part of a region to
// peers and take it back at once (IBTA 10.6.7, ibv_alloc_mw(3)).
type WindowPD interface {
	// AllocMW allocates a window that is bound to nothing. The error matches
	// ErrNotSupported where DeviceAttr.MWTypes does not have the type.
	AllocMW(t MWType) (MW, error)
}

// MW is a memory window.
type MW interface {
	// Type is the type that it was allocated with.
	Type() MWType
	// RKey is the key of the last bind that was posted, for requests of peers. Before
	// the first it grants nothing.
	RKey() uint32
	// Close ends what the window grants, and frees it. Once it has returned, the device
	// neither reads nor writes memory by it. The region that it is bound to can be closed
	// after that only.
	Close() error
}

// MWBind says what OpBindMW binds, and to what. What can never be right is refused by
// PostSend, with an error that matches ErrInvalid. What depends on the state of window and
// region fails the request with StatusMemoryWindowBindError, and the queue pair with it:
// a window of type 2 that is bound, bytes outside the region.
type MWBind struct {
	MW MW // of the protection domain of the queue pair
	// RKey is the key that a window of type 2 is to have: NextRKey of the one it has.
	// It is ignored for type 1.
	RKey uint32
	// MR is the region, which has AccessMWBind; one is needed for no bytes too. Where
	// peers are to write, it has AccessLocalWrite.
	MR     MR
	Addr   uint64 // of the first byte, in the region
	Length uint64 // bytes; zero ends what a window of type 1 grants
	// Access is what peers may do: AccessRemoteRead, AccessRemoteWrite,
	// AccessRemoteAtomic, and AccessZeroBased. The region need not grant that itself.
	Access Access
}

// NextRKey is a key for the next bind of a memory window of type 2 that has that key
// (ibv_inc_rkey(3)).
func NextRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }
