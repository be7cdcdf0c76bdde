//go:build linux && cgo && verbs

package ibverbs_test

import (
	"io/fs"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/test/soak"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestGuestDevices(t *testing.T) {
	requireGuest(t)
	list, err := ibverbs.Driver{}.Devices()
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.NotZero(t, list[0].GUID)
	list[0].GUID = 0
	assert.Equal(t, verbs.DeviceInfo{Name: "rxe0", Driver: "ibverbs", Interface: "v0"}, list[0])
}

func TestGuestQuery(t *testing.T) {
	d := openAdapter(t)
	assert.Equal(t, "rxe0", d.Name())
	assert.Equal(t, "ibverbs", d.Driver())
	attr, err := d.Query()
	require.NoError(t, err)
	assert.Equal(t, 1, attr.Ports)
	assert.Equal(t, verbs.TransportSet(verbs.RC, verbs.UC, verbs.UD), attr.Transports)
	assert.True(t, attr.Atomics)
	assert.False(t, attr.AtomicsGlobal, "rxe reports IBV_ATOMIC_HCA")
	assert.NotZero(t, attr.NodeGUID)
	for what, n := range map[string]int{
		"MaxQP": attr.MaxQP, "MaxQPWR": attr.MaxQPWR, "MaxSGE": attr.MaxSGE, "MaxCQ": attr.MaxCQ, "MaxCQE": attr.MaxCQE,
		"MaxMR": attr.MaxMR, "MaxPD": attr.MaxPD, "MaxSRQ": attr.MaxSRQ, "MaxSRQWR": attr.MaxSRQWR, "MaxSRQSGE": attr.MaxSRQSGE,
		"MaxAH": attr.MaxAH, "MaxMulticastGroups": attr.MaxMulticastGroups, "MaxQPReadAtomic": attr.MaxQPReadAtomic, "MaxInitReadAtomic": attr.MaxInitReadAtomic,
		"MaxInline": attr.MaxInline, "MaxMessage": int(attr.MaxMessage),
	} {
		assert.Positive(t, n, what)
	}
	port, err := d.QueryPort(1)
	require.NoError(t, err)
	assert.Positive(t, port.GIDTable)
	port.GIDTable, port.ActiveRate = 0, 0
	assert.Equal(t, verbs.PortAttr{State: verbs.PortActive, LinkLayer: verbs.LinkEthernet, MaxMTU: 4096, ActiveMTU: 4096, Interface: "v0"}, port)
	for _, bad := range []int{0, 2, -1, 1000} {
		_, err = d.QueryPort(bad)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		_, err = d.GIDs(bad)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	}
	table, err := d.GIDs(1)
	require.NoError(t, err)
	require.Len(t, table, 3)
	for i, addr := range []string{"fe80::", "10.0.0.1", "fd00::1"} {
		assert.Equal(t, i, table[i].Index)
		assert.Equal(t, verbs.GIDRoCEv2, table[i].Type)
		assert.Equal(t, "v0", table[i].Interface)
		assert.Equal(t, uint16(4791), table[i].UDPPort)
		assert.True(t, strings.HasPrefix(table[i].GID.Addr().String(), addr), "%v", table[i])
	}
	counters, err := d.Counters()
	require.NoError(t, err)
	names := make(map[string]bool)
	for _, c := range counters {
		names[c.Name] = true
	}
	assert.True(t, names["sent_pkts"] && names["rcvd_pkts"], "%v", counters)
}

// The machine is not as it should be; TestRig sees to that.
func TestGuestOpenFails(t *testing.T) {
	requireGuest(t)
	d, err := ibverbs.Driver{}.Open("nothing0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	assert.Nil(t, d)
	assert.Contains(t, err.Error(), "rxe0", "the error names what there is")
	t.Log(err)
}

func TestBrokenNoPermission(t *testing.T) {
	requireGuest(t)
	if os.Getuid() == 0 {
		again := exec.Command(os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
		again.Dir = "/"
		again.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := again.CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Logf("%s", out)
		return
	}
	_, err := ibverbs.Driver{}.Open("rxe0")
	require.ErrorIs(t, err, fs.ErrPermission)
	require.NotErrorIs(t, err, verbs.ErrNoDevice)
	require.NotErrorIs(t, err, verbs.ErrNotSupported)
	assert.Contains(t, err.Error(), "/dev/infiniband/uverbs0")
	t.Log(err)
}

func TestBrokenNoDevice(t *testing.T) {
	requireGuest(t)
	list, err := ibverbs.Driver{}.Devices()
	require.NoError(t, err)
	assert.Empty(t, list)
	_, err = ibverbs.Driver{}.Open("rxe0")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.NotErrorIs(t, err, verbs.ErrNotSupported)
	t.Log(err)
}

func TestBrokenNoLibrary(t *testing.T) {
	requireGuest(t)
	_, err := ibverbs.Driver{}.Devices()
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	_, err = ibverbs.Driver{}.Open("rxe0")
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.NotErrorIs(t, err, verbs.ErrNoDevice)
	assert.Contains(t, err.Error(), "libibverbs1")
	t.Log(err)
}

func TestGuestInUse(t *testing.T) {
	d, err := ibverbs.Driver{}.Open(openAdapter(t).Name())
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQInit{Capacity: 10})
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(verbs.SRQInit{MaxWR: 10})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 10})
	require.NoError(t, err)

	for range 2 {
		for _, o := range []interface{ Close() error }{d, pd, cq, srq} {
			require.ErrorIs(t, o.Close(), verbs.ErrInUse)
		}
	}
	require.NoError(t, qp.Close())
	require.NoError(t, qp.Close(), "closing again is no error")
	_, err = qp.PostSend(make([]verbs.SendWR, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = qp.PostRecv(make([]verbs.RecvWR, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = qp.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, qp.Modify(verbs.QPAttr{}, 0), verbs.ErrClosed)
	require.ErrorIs(t, pd.Close(), verbs.ErrInUse)
	require.NoError(t, srq.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, pd.Close())
	_, err = pd.RegMR(make([]byte, 10), verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.NoError(t, cq.Close())
	_, err = cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = cq.Arm(false)
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, d.DefaultPD().Close(), verbs.ErrInvalid)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	for _, err := range []error{
		second(d.Query()), second(d.QueryPort(1)), second(d.GIDs(1)), second(d.Counters()), second(d.AllocPD()), second(d.CreateCQ(verbs.CQInit{Capacity: 1})),
		second(d.DefaultPD().RegMR(make([]byte, 1), 0)), second(d.DefaultPD().CreateSRQ(verbs.SRQInit{MaxWR: 1})),
		second(d.DefaultPD().CreateAH(verbs.AddressAttr{})), second(d.DefaultPD().CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq})),
	} {
		require.ErrorIs(t, err, verbs.ErrClosed)
	}
}

func second[T any](_ T, err error) error { return err }

func TestGuestRegister(t *testing.T) {
	d := openAdapter(t)
	pd := d.DefaultPD()
	_, err := pd.RegMR(nil, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = pd.RegMR(make([]byte, 10), verbs.AccessRemoteWrite)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	m := register(t, pd, 100, allAccess|verbs.AccessRelaxedOrdering)
	assert.Equal(t, uint64(100), m.mr.Len())
	assert.Equal(t, allAccess|verbs.AccessRelaxedOrdering, m.mr.Access())
	assert.NotZero(t, m.mr.RKey())
}

// Memory of the program's can lie in an object with pointers in it, which cgo
// would not take: it must only be pinned.
func TestGuestRegisterField(t *testing.T) {
	d := openAdapter(t)
	type session struct {
		next *session
		buf  [4096]byte
	}
	s := &session{next: new(session)}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	pinner.Pin(s)
	for _, mem := range [][]byte{s.buf[:], registered.buf[:]} {
		mr, err := d.DefaultPD().RegMR(mem, allAccess)
		require.NoError(t, err)
		assert.Equal(t, addressOf(mem), mr.Addr())
		require.NoError(t, mr.Close())
	}
	registered.next = s.next
}

var registered struct {
	next any
	buf  [100]byte
}

// What is opened and closed leaves nothing behind.
func TestGuestSoakCycles(t *testing.T) {
	requireGuest(t)
	gid := gidOf(t, openAdapter(t), "IPv4")
	address := verbs.AddressAttr{DGID: gid.GID, SGIDIndex: gid.Index, Port: 1}
	cycle := func(i int) {
		open := ibverbs.Driver{}.Open
		if i%2 == 1 {
			open = ibverbs.OpenExtended
		}
		d, err := open("rxe0")
		require.NoError(t, err)
		pd, err := d.AllocPD()
		require.NoError(t, err)
		b, err := syscall.Mmap(-1, 0, 8192, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		require.NoError(t, err)
		mr, err := pd.RegMR(b, allAccess)
		require.NoError(t, err)
		cq, err := d.CreateCQ(verbs.CQInit{Capacity: 100})
		require.NoError(t, err)
		cq.OnCompletion(func() {})
		_, err = cq.Arm(false)
		require.NoError(t, err)
		srq, err := pd.CreateSRQ(verbs.SRQInit{MaxWR: 64, MaxSGE: 4})
		require.NoError(t, err)
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 64, MaxSendSGE: 4, MaxInline: 64})
		require.NoError(t, err)
		ah, err := pd.CreateAH(address)
		require.NoError(t, err)
		cancel := d.SubscribeEvents(func(verbs.Event) {})
		cancel()
		for _, o := range []interface{ Close() error }{ah, qp, srq, cq, mr, pd, d} {
			require.NoError(t, o.Close())
		}
		require.NoError(t, syscall.Munmap(b))
	}
	for i := range 20 { // what is kept for ever is there now
		cycle(i)
	}
	const rounds = 4
	perRound := soak.Rounds(t, 50, 1000)
	files, maps, resident := openFiles(t), mappings(t), residentPages(t)
	growth := math.MaxInt
	for range rounds {
		for i := range perRound {
			cycle(i)
		}
		now := residentPages(t)
		growth = min(growth, now-resident)
		resident = now
	}
	assert.Equal(t, files, openFiles(t), "files")
	assert.InDelta(t, maps, mappings(t), 40, "mappings")
	// The runtime takes memory by the megabyte. What a cycle keeps for ever would
	// show in every round.
	assert.Less(t, growth, perRound/2, "pages that %d cycles leave", perRound)
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func mappings(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(b), "\n")
}

func residentPages(t *testing.T) int {
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if after, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n := 0
			for _, c := range after {
				if c >= '0' && c <= '9' {
					n = 10*n + int(c-'0')
				}
			}
			return n / 4
		}
	}
	require.Fail(t, "no RssAnon")
	return 0
}
