//go:build linux && cgo && verbs

package ibverbs_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/cgo/ibverbs"
	"github.com/verbena-rdma/verbena/verbs"
)

// withFakeLibrary runs the test in a process of its own, whose libibverbs is that of
// testdata/libibverbs. dir is the folder that commands it.
func withFakeLibrary(t *testing.T, test func(dir string), env ...string) {
	t.Helper()
	if dir := os.Getenv("FAKE_DIR"); dir != "" {
		test(dir)
		return
	}
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc)")
	}
	dir := t.TempDir()
	build := exec.Command(compiler, "-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1",
		"-Wl,--version-script=testdata/libibverbs/libibverbs.map", "-o", filepath.Join(dir, "libibverbs.so.1"),
		"testdata/libibverbs/libibverbs.c", "-lpthread")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"events", "completions"} {
		require.NoError(t, unix.Mkfifo(filepath.Join(dir, name), 0o600))
	}
	uverbs := "uverbs0"
	if devices, _ := filepath.Glob("/sys/class/infiniband_verbs/uverbs*"); len(devices) > 0 {
		uverbs = filepath.Base(devices[0]) // the kernel has it
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(append(os.Environ(), env...), "FAKE_DIR="+dir, "FAKE_UVERBS="+uverbs, "LD_LIBRARY_PATH="+dir)
	out, err = child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	complaints, err := os.ReadFile(filepath.Join(dir, "log"))
	if err == nil {
		assert.Fail(t, "libibverbs was misused", "%s", bytes.TrimSpace(complaints))
	}
}

// fakeDevice has one object of each kind on the device of the library.
type fakeDevice struct {
	verbs.Device
	qp      verbs.QP
	closers []namedCloser // in the order in which they can be closed
}

type namedCloser struct {
	name  string
	close func() error
}

func openFake(t *testing.T) *fakeDevice {
	t.Helper()
	dev, err := ibverbs.Driver{}.Open("fake0")
	require.NoError(t, err)
	d := &fakeDevice{Device: dev}
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQInit{Capacity: 8})
	require.NoError(t, err)
	_, err = cq.Arm(false)
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(verbs.SRQInit{MaxWR: 8, MaxSGE: 1})
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite|verbs.AccessMWBind)
	require.NoError(t, err)
	mw, err := pd.(verbs.WindowPD).AllocMW(verbs.MWType2)
	require.NoError(t, err)
	ah, err := pd.CreateAH(verbs.AddressAttr{DLID: 1})
	require.NoError(t, err)
	d.qp, err = pd.CreateQP(verbs.QPInit{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 4})
	require.NoError(t, err)
	group := verbs.GID{0: 0xff, 15: 1}
	require.NoError(t, d.qp.(verbs.MulticastQP).AttachMulticast(group, 0))
	d.closers = []namedCloser{
		{"multicast", func() error { return d.qp.(verbs.MulticastQP).DetachMulticast(group, 0) }},
		{"queue pair", d.qp.Close}, {"address handle", ah.Close}, {"memory window", mw.Close},
		{"memory region", mr.Close}, {"shared receive queue", srq.Close}, {"completion queue", cq.Close},
		{"protection domain", pd.Close},
	}
	return d
}

// The kernel takes the device away while an event of a queue pair is being handled. All
// objects can be closed at once, none is freed under the event, and no file is left open.
func TestTakenAway(t *testing.T) {
	withFakeLibrary(t, func(dir string) { testTakenAway(t, dir) })
}

func testTakenAway(t *testing.T, dir string) {
	_, err := ibverbs.Driver{}.Devices() // loads the library
	require.NoError(t, err)
	poller, err := os.Open("/dev/null") // starts Go's network poller, which keeps files
	require.NoError(t, err)
	defer poller.Close()
	openFake(t).closeAll(t)
	before := openFiles(t)

	d := openFake(t)
	handling, handled := make(chan verbs.Event), make(chan struct{})
	cancel := d.SubscribeEvents(func(e verbs.Event) {
		if e.Type == verbs.EventQPFatal {
			handling <- e
			<-handled
		}
	})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "events"), []byte{1}, 0))
	e := <-handling
	assert.Equal(t, d.qp.Num(), e.QPN)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "gone"), nil, 0o600))
	for _, c := range d.closers {
		require.NoError(t, c.close(), c.name)
	}
	close(handled)
	cancel()
	require.NoError(t, d.Close())
	assert.Equal(t, before, openFiles(t), "files that are open")
}

func (d *fakeDevice) closeAll(t *testing.T) {
	t.Helper()
	for _, c := range d.closers {
		require.NoError(t, c.close(), c.name)
	}
	require.NoError(t, d.Close())
}

// A device that refuses, but is still there, may still use what it has: closing fails, and
// the error does not say that the device is gone. It can be tried again.
func TestRefusesToDestroy(t *testing.T) {
	withFakeLibrary(t, func(dir string) { testRefusesToDestroy(t, dir) })
}

func testRefusesToDestroy(t *testing.T, dir string) {
	d := openFake(t)
	broken := filepath.Join(dir, "broken")
	for _, c := range d.closers {
		require.NoError(t, os.WriteFile(broken, nil, 0o600))
		err := c.close()
		require.ErrorIs(t, err, syscall.EIO, c.name)
		require.NotErrorIs(t, err, verbs.ErrNoDevice, c.name)
		require.NoError(t, os.Remove(broken))
		require.NoError(t, c.close(), c.name)
	}
	require.NoError(t, d.Close())
}
