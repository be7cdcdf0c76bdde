//go:build linux && cgo && verbs

package efa

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cgo/internal/efa/efatest"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What a device has by each version of its library.
func TestVersions(t *testing.T) {
	old := verbs.SRDAttr{
		MaxSendWR: 4096, MaxRecvWR: 32768, MaxSendSGE: 2, MaxRecvSGE: 3, MaxReadSGE: 1, MaxInline: 32,
		MaxMessage: 8928, MaxRDMA: 1 << 30, Read: true, RNRRetry: true,
	}
	writes, unsolicited := old, old
	writes.Write = true
	unsolicited.Write, unsolicited.UnsolicitedWriteRecv = true, true
	for version, want := range map[int]struct {
		srd    verbs.SRDAttr
		fields verbs.WCFields
	}{
		26: {old, 0}, 44: {old, verbs.WCSource}, 46: {writes, verbs.WCSource}, 52: {unsolicited, verbs.WCSource},
	} {
		d, err := Open(efatest.Build(t, version), nil)
		require.NoError(t, err)
		assert.Equal(t, want.srd, d.Attr().SRD(8928, 1), "rdma-core %d", version)
		assert.Equal(t, want.fields, d.Attr().Fields(), "rdma-core %d", version)
	}
}

func TestAttr(t *testing.T) {
	assert.Equal(t, verbs.SRDAttr{MaxMessage: 4000}, (&Attr{MaxRDMA: 1 << 20}).SRD(4000, 1), "neither reads nor writes")
	a := Attr{MaxRDMA: 1 << 20, Caps: CapWrite | CapUnsolicitedWriteRecv | CapSourceGID | 1<<31}
	assert.Equal(t, verbs.SRDAttr{MaxMessage: 4000, MaxRDMA: 1 << 20, Write: true}, a.SRD(4000, 1),
		"what nothing would mark is not offered")
	assert.Zero(t, a.Fields())
	assert.Equal(t, verbs.WCSource, (&Attr{ExtendedCQ: true}).Fields())
}

func TestMissing(t *testing.T) {
	for file, want := range map[string]string{
		"libefa-that-is-not-there.so.1": "libefa-that-is-not-there.so.1 cannot be loaded (libefa-that-is-not-there.so.1: cannot open shared object file: No such file or directory): install it (Debian: ibverbs-providers)",
		"libc.so.6":                     "libc.so.6 is too old: it has no efadv_query_device, which came with rdma-core 26 (Debian: ibverbs-providers)",
	} {
		_, err := Open(file, nil)
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, verbs.ErrNotSupported)
		var missing *MissingError
		require.ErrorAs(t, err, &missing)
		assert.Equal(t, file, missing.Library)
	}
	l, err := load(efatest.Build(t, 42))
	require.NoError(t, err)
	require.NoError(t, l.require("efadv_query_ah"))
	require.ErrorContains(t, l.require("efadv_query_ah", "efadv_create_cq"), "no efadv_create_cq, which came with rdma-core 43")
}

// A device of another kind.
func TestNoEFA(t *testing.T) {
	other := new([4096]byte) // the library does not look at it
	_, err := Open(efatest.Build(t, 52), unsafe.Pointer(other))
	require.Equal(t, syscall.EOPNOTSUPP, err)
}

// The system's own library has what this package asks for.
func TestSystemLibrary(t *testing.T) {
	l, err := load(Library)
	if err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, l.require("efadv_query_device", "efadv_create_qp_ex", "efadv_query_ah", "efadv_create_cq", "efadv_cq_from_ibv_cq_ex"))
}

// The number of an address handle, a struct ibv_ah, is the library's.
func TestHandleNumber(t *testing.T) {
	d, err := Open(efatest.Build(t, 26), nil)
	require.NoError(t, err)
	ah := struct {
		context, pd uintptr
		handle      uint32
	}{handle: 9}
	number, err := d.HandleNumber(unsafe.Pointer(&ah))
	require.NoError(t, err)
	assert.Equal(t, uint16(9), number)
	ah.handle = 0
	_, err = d.HandleNumber(unsafe.Pointer(&ah))
	require.Equal(t, syscall.EINVAL, err)
}
