package roce

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// Broadcast and unspecified addresses are refused in attributes of queue pairs, in address
// handles and by the connection manager.
func TestAddressesThatAreNoPeers(t *testing.T) {
	subnet := netip.MustParseAddr("192.0.2.255")
	cfg := Config{Broadcasts: []netip.Addr{subnet}}
	for _, text := range []string{"255.255.255.255", subnet.String(), "0.0.0.0", "239.255.1.1"} {
		addr := netip.MustParseAddr(text)
		attr := verbs.AddressAttr{DGID: verbs.GIDFromAddr(addr), Port: 1}

		rc := openSide(t, cfg, 64)
		require.NoError(t, rc.qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1}, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
		err := rc.qp.Modify(verbs.QPAttr{State: verbs.QPReadyToReceive, PathMTU: 1024, DestQPN: 7, Address: attr, MinRNRTimer: 1},
			verbs.QPAttrState|verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|verbs.QPAttrMaxDestReadAtomic|verbs.QPAttrMinRNRTimer)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, text+" cannot be the address of a peer")

		if !addr.IsMulticast() {
			_, err = openUD(t, cfg).dev.DefaultPD().CreateAH(attr)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.ErrorContains(t, err, text+" cannot be the address of a peer")
		}

		m := openCMSide(t, cfg)
		_, err = m.cm.Dial(verbs.CMDial{Addr: netip.AddrPortFrom(addr, 7471), Type: verbs.RC})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, text+" cannot be the address of a peer")
	}
}
