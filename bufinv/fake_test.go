package bufinv

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeDevice registers memory under one key and does nothing else.
type fakeDevice struct {
	verbs.Device
	pd *fakePD
}

type fakePD struct {
	verbs.PD
	key uint32
}

type fakeMR struct {
	verbs.MR
	key uint32
	mem []byte
}

func (d *fakeDevice) Name() string        { return "fake0" }
func (d *fakeDevice) DefaultPD() verbs.PD { return d.pd }
func (r *fakeMR) Addr() uint64            { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mem)))) }
func (r *fakeMR) LKey() uint32            { return r.key }
func (r *fakeMR) Close() error            { return nil }

func (p *fakePD) RegMR(mem []byte, _ verbs.Access) (verbs.MR, error) {
	return &fakeMR{key: p.key, mem: mem}, nil
}

const testKey = 0x1234

// device is what all tests register with.
var device = &fakeDevice{pd: &fakePD{key: testKey}}

// local makes memory that the end of the test closes: that fails if a buffer
// still holds it.
func local(t testing.TB, size int, perm mmap.Permission) *mmap.Map {
	t.Helper()
	m, err := mmap.Alloc(device, size, perm)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// remote makes a peer's memory likewise.
func remote(t testing.TB, addr, size uint64) *mmap.Map {
	t.Helper()
	m, err := mmap.FromKey(device, addr, int(size), 7, mmap.RemoteRead|mmap.RemoteWrite)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// inventory makes one that the end of the test closes: that fails if a buffer is
// still out.
func inventory(t testing.TB, n int) *Inventory {
	t.Helper()
	i, err := New(n)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, i.Close()) })
	return i
}
