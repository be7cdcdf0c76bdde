//go:build linux

package sysfs

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// here makes the folder of trees a folder of the test.
func here(t *testing.T) string {
	folder := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", folder)
	return folder
}

func testDevice() Device {
	return Device{Name: "soft_eth0", Number: 3, Description: Description{
		Interface: "eth0", GUID: 0x0a00_27ff_fe01_0203,
		GIDs: []verbs.GIDEntry{
			{Index: 0, GID: verbs.GIDFromAddr(netip.MustParseAddr("192.0.2.7")), Type: verbs.GIDRoCEv2, Interface: "eth0"},
			{Index: 17, GID: verbs.GIDFromAddr(netip.MustParseAddr("2001:db8::7")), Type: verbs.GIDRoCEv2, Interface: "eth0"},
		},
		Counters: []verbs.Counter{{Name: "sent_pkts", Value: 1234}, {Name: "rdma_sends", Value: 5}},
	}}
}

func TestTree(t *testing.T) {
	folder := here(t)
	d := testDevice()
	tree, err := Make([]Device{d})
	require.NoError(t, err)
	reads := func(path, want string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(tree.Path(), path))
		require.NoError(t, err)
		assert.Equal(t, want+"\n", string(text), path)
	}
	port := "class/infiniband/soft_eth0/ports/1/"
	for path, want := range map[string]string{
		"class/infiniband/soft_eth0/node_guid":                              "0a00:27ff:fe01:0203",
		"class/infiniband/soft_eth0/device/infiniband/soft_eth0/node_type":  "1: CA",
		"class/infiniband/soft_eth0/device/infiniband_verbs/uverbs3/ibdev":  "soft_eth0",
		"class/infiniband/soft_eth0/subsystem/soft_eth0/ports/1/phys_state": "5: LinkUp",
		"class/infiniband_verbs/uverbs3/device/numa_node":                   "-1",
		"class/infiniband_verbs/uverbs3/subsystem/abi_version":              "6",
		"class/net/eth0/device/infiniband/soft_eth0/parent":                 "eth0",
		port + "gids/0":                     "0000:0000:0000:0000:0000:ffff:c000:0207",
		port + "gids/1":                     "0000:0000:0000:0000:0000:0000:0000:0000",
		port + "gids/17":                    "2001:0db8:0000:0000:0000:0000:0000:0007",
		port + "gid_attrs/ndevs/17":         "eth0",
		port + "gid_attrs/types/0":          "RoCE v2",
		port + "hw_counters/sent_pkts":      "1234",
		port + "hw_counters/rdma_sends":     "5",
		port + "counters/port_xmit_packets": "1234",
	} {
		reads(path, want)
	}
	assert.NoFileExists(t, filepath.Join(tree.Path(), port, "gid_attrs/types/1"))
	link, err := os.Readlink(filepath.Join(tree.Path(), "class/infiniband/soft_eth0"))
	require.NoError(t, err)
	assert.Equal(t, "../../devices/virtual/infiniband/soft_eth0", link)

	// A file that is open shows the new value, also a shorter one.
	open, err := os.Open(filepath.Join(tree.Path(), port, "hw_counters/sent_pkts"))
	require.NoError(t, err)
	defer open.Close()
	name, err := filepath.EvalSymlinks(open.Name())
	require.NoError(t, err)
	assert.Equal(t, "soft_eth0", tree.DeviceOf(name))
	require.NoError(t, tree.WriteCounters("soft_eth0", []verbs.Counter{{Name: "sent_pkts", Value: 7}}))
	text := make([]byte, 10)
	n, err := open.Read(text)
	require.NoError(t, err)
	assert.Equal(t, "7\n", string(text[:n]))
	d.GIDs[0].GID = verbs.GIDFromAddr(netip.MustParseAddr("192.0.2.8"))
	require.NoError(t, tree.Write(&d))
	reads(port+"gids/0", "0000:0000:0000:0000:0000:ffff:c000:0208")

	require.NoError(t, tree.Remove())
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// libfabric and UCX recognise an EFA by these files.
func TestEFA(t *testing.T) {
	here(t)
	d := testDevice()
	d.EFA = true
	tree, err := Make([]Device{d})
	require.NoError(t, err)
	own := filepath.Join(tree.Path(), "class/infiniband/soft_eth0")
	for name, want := range map[string]string{"node_type": "7: unspecified", "device/vendor": "0x1d0f", "device/device": "0xefa1"} {
		text, err := os.ReadFile(filepath.Join(own, name))
		require.NoError(t, err)
		assert.Equal(t, want+"\n", string(text), name)
	}
	for name, want := range map[string]string{"device": "0000:00:03.0", "device/driver": "efa"} {
		path, err := filepath.EvalSymlinks(filepath.Join(own, name))
		require.NoError(t, err)
		assert.Equal(t, want, filepath.Base(path))
	}
	require.NoError(t, tree.Remove())
}

// Only devices whose names differ in more than dashes lose these.
func TestNames(t *testing.T) {
	list := []verbs.DeviceInfo{{Name: "soft-a-b"}, {Name: "soft-a_b"}, {Name: "soft-c-d"}}
	ShowNames(list)
	assert.Equal(t, []verbs.DeviceInfo{{Name: "soft-a-b"}, {Name: "soft-a_b"}, {Name: "soft_c_d"}}, list)
}

// treeOf makes a folder as of another process, with a file in it.
func treeOf(t *testing.T, folder string, o owner) string {
	path := filepath.Join(folder, fmt.Sprintf("%s%d-%d-%d-1", prefix, o.pid, o.started, o.namespace))
	require.NoError(t, os.Mkdir(path, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(path, "class"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(path, "class", "file"), nil, 0o644))
	return path
}

// A tree is removed when its process has ended, and no other folder.
func TestStaleTrees(t *testing.T) {
	folder := here(t)
	self := self()
	require.NotZero(t, self.namespace)
	cmd := exec.Command("true")
	require.NoError(t, cmd.Run())
	ended := owner{pid: cmd.Process.Pid, started: self.started, namespace: self.namespace}

	stale := treeOf(t, folder, ended)
	reused := self
	reused.started++ // another process had the PID
	other := treeOf(t, folder, reused)
	elsewhere := ended
	elsewhere.namespace++
	kept := []string{treeOf(t, folder, self), treeOf(t, folder, elsewhere)}

	// What looks like a tree of an ended process.
	precious := filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.WriteFile(precious, nil, 0o644))
	link := strings.TrimSuffix(stale, "1") + "2"
	require.NoError(t, os.Symlink(filepath.Dir(precious), link))
	shared := strings.TrimSuffix(stale, "1") + "3"
	require.NoError(t, os.MkdirAll(filepath.Join(shared, "class"), 0o755))
	linked := strings.TrimSuffix(stale, "1") + "4" // with a link in place of a part, and one below
	require.NoError(t, os.MkdirAll(filepath.Join(linked, "devices"), 0o700))
	require.NoError(t, os.Symlink(filepath.Dir(precious), filepath.Join(linked, "class")))
	require.NoError(t, os.Symlink(filepath.Dir(precious), filepath.Join(linked, "devices", "link")))
	foreign := strings.TrimSuffix(stale, "1") + "5" // with a file that is not of a tree
	require.NoError(t, os.Mkdir(foreign, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "mine"), nil, 0o600))

	tree, err := Make(nil)
	require.NoError(t, err)
	for _, path := range []string{stale, other, linked} {
		assert.NoDirExists(t, path)
	}
	for _, path := range append(kept, precious, link, filepath.Join(shared, "class"), filepath.Join(foreign, "mine")) {
		_, err := os.Lstat(path)
		assert.NoError(t, err, path)
	}
	require.NoError(t, tree.Remove())
}

// Without a folder for temporary files there is no tree.
func TestNoFolder(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/nowhere")
	t.Setenv("TMPDIR", "/nowhere")
	_, err := Make(nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.Contains(t, err.Error(), "/sys/class/infiniband")
}
