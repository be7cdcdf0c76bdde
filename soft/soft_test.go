package soft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/optional"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestLoopbackAddresses opens several devices, each of which gets an address of
// its own on the standard port.
func TestLoopbackAddresses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8")
	}
	seen := make(map[verbs.GID]bool)
	for range 4 {
		d, err := Driver{}.Open("soft-lo")
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		gids, err := d.GIDs(1)
		require.NoError(t, err)
		require.NotEmpty(t, gids)
		assert.Equal(t, uint16(4791), gids[0].UDPPort)
		assert.True(t, gids[0].GID.Addr().IsLoopback())
		assert.False(t, seen[gids[0].GID], "%v is used twice", gids[0].GID)
		seen[gids[0].GID] = true
	}
}

func TestAddressInUse(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer c.Close()
	_, err = Driver{}.Open("soft-" + c.LocalAddr().String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.Contains(t, err.Error(), c.LocalAddr().String())
	assert.Contains(t, err.Error(), "in use")
}

// The port is below those that systems assign to sockets that ask for any port.
func TestExplicitAddress(t *testing.T) {
	for _, name := range []string{"soft-127.0.0.1:17911", "soft-[::1]:17911"} {
		d, err := Driver{}.Open(name)
		require.NoError(t, err)
		assert.Equal(t, name, d.Name())
		gids, err := d.GIDs(1)
		require.NoError(t, err)
		require.Len(t, gids, 1)
		assert.Equal(t, uint16(17911), gids[0].UDPPort)
		require.NoError(t, d.Close())
	}
}

// A device at an address and port 0 takes another port where 4791 is taken: one to which receivers of
// datagrams reply.
func TestAnyPort(t *testing.T) {
	var ports []uint16
	for range 2 { // another program may have 4791
		d, err := Driver{}.Open("soft-127.0.7.40:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		gids, err := d.GIDs(1)
		require.NoError(t, err)
		require.Len(t, gids, 1)
		if ports = append(ports, gids[0].UDPPort); gids[0].UDPPort != 4791 {
			assert.GreaterOrEqual(t, gids[0].UDPPort, uint16(1<<15))
			assert.Less(t, gids[0].UDPPort, uint16(49152))
		}
	}
	require.NotEqual(t, ports[0], ports[1])
	if ports[0] == 4791 {
		_, err := Driver{}.Open("soft-127.0.7.40")
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
}

// A name may have an address with a zone, and a port.
func TestZoneAndPort(t *testing.T) {
	for name, want := range map[string]string{
		"soft-[fe80::1%eth0]:5000": "[fe80::1%eth0]:5000", "soft-fe80::1%eth0": "[fe80::1%eth0]:4791", "soft-[fe80::1%eth0]": "[fe80::1%eth0]:4791",
		"soft-192.0.2.1:0": "192.0.2.1:0",
	} {
		cfg, _, err := parseName(name)
		require.NoError(t, err)
		assert.Equal(t, want, cfg.Address.String(), name)
	}
}

func TestBadNames(t *testing.T) {
	for name, want := range map[string]struct {
		is   error
		says string
	}{
		"":                           {verbs.ErrNoDevice, "soft-"},
		"mlx5_0":                     {verbs.ErrNoDevice, "mlx5_0"},
		"soft-":                      {verbs.ErrNoDevice, "soft-"},
		"soft_":                      {verbs.ErrNoDevice, "soft-"},
		"soft_nosuchif0":             {verbs.ErrNoDevice, "nosuchif0"},
		"soft-nosuchif0":             {verbs.ErrNoDevice, "nosuchif0"},
		"soft-192.0.2.1":             {verbs.ErrNoDevice, "192.0.2.1"},
		"soft-lo?loss=2":             {verbs.ErrInvalid, "probability"},
		"soft-lo?loss=NaN":           {verbs.ErrInvalid, "probability"},
		"soft-lo?delay=5":            {verbs.ErrInvalid, "duration"},
		"soft-lo?delay=-5ms":         {verbs.ErrInvalid, "Delay"},
		"soft-lo?rate=0":             {verbs.ErrInvalid, "bytes per second"},
		"soft-lo?seed=-1":            {verbs.ErrInvalid, "seed"},
		"soft-lo?srd_seed=first":     {verbs.ErrInvalid, "srd_seed"},
		"soft-lo?segmentation=maybe": {verbs.ErrInvalid, "segmentation"},
		"soft-lo?lost=0.1":           {verbs.ErrInvalid, "lost"},
		"soft-lo?%zz":                {verbs.ErrInvalid, "options"},
		"soft-lo?capture=":           {verbs.ErrInvalid, "capture"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Driver{}.Open(name)
			require.ErrorIs(t, err, want.is)
			assert.Nil(t, d)
			assert.Contains(t, err.Error(), want.says)
			assert.NotContains(t, err.Error(), "\n")
			_, err = Driver{}.Describe(name)
			require.ErrorIs(t, err, want.is)
			assert.Contains(t, err.Error(), want.says)
		})
	}
	_, err := Open(Config{Interface: "lo", Address: netip.MustParseAddrPort("127.0.0.1:1")})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = Open(Config{Faults: Faults{Loss: -1}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

// A name with underscores is that of the device with dashes.
func TestNameWithoutDashes(t *testing.T) {
	list, err := Driver{}.Devices()
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for given, want := range map[string]string{
		strings.ReplaceAll(list[0].Name, "-", "_"): list[0].Name,
		"soft_127.0.0.1:17912":                     "soft-127.0.0.1:17912",
	} {
		d, err := Driver{}.Open(given)
		require.NoError(t, err)
		assert.Equal(t, want, d.Name())
		require.NoError(t, d.Close())
	}
}

// Describe opens nothing, neither a port nor a file, and says what the open device says.
func TestDescribe(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer c.Close()
	path := filepath.Join(t.TempDir(), "trace.pcap")
	for _, name := range []string{"soft-lo", "soft-lo?loss=0.1&delay=1ms", "soft-" + c.LocalAddr().String(), "soft-127.0.0.1?capture=" + path} {
		_, err := Driver{}.Describe(name)
		require.NoError(t, err, name)
	}
	assert.NoFileExists(t, path)

	list, err := Driver{}.Devices()
	require.NoError(t, err)
	for _, name := range []string{"soft-127.77.0.1", list[0].Name, "soft-127.77.0.1?efa=on"} {
		described, err := Driver{}.Describe(name)
		require.NoError(t, err)
		d, err := Driver{}.Open(name)
		require.NoError(t, err)
		attr, err := d.Query()
		require.NoError(t, err)
		assert.Equal(t, attr.NodeGUID, described.GUID)
		assert.Equal(t, attr.VendorID == EFAVendorID, described.EFA)
		assert.Equal(t, strings.HasSuffix(name, "efa=on"), described.EFA)
		gids, err := d.GIDs(1)
		require.NoError(t, err)
		require.Len(t, described.GIDs, len(gids))
		for i, g := range described.GIDs {
			assert.Equal(t, gids[i].Interface, g.Interface)
			if !g.GID.Addr().IsLoopback() || name != list[0].Name { // other devices may have the first of 127.0.0.0/8
				assert.Equal(t, gids[i].GID, g.GID)
			}
		}
		counters, err := d.Counters()
		require.NoError(t, err)
		require.Len(t, described.Counters, len(counters))
		require.NoError(t, d.Close())
	}
}

func TestCaptureFile(t *testing.T) {
	first, err := Driver{}.Open("soft-lo") // takes an address that the other has to pass by
	require.NoError(t, err)
	defer func() { require.NoError(t, first.Close()) }()
	folder := t.TempDir()
	d, err := Driver{}.Open("soft-lo?capture=" + filepath.Join(folder, "{pid}.pcap"))
	require.NoError(t, err)
	require.NoError(t, d.Close())
	path := filepath.Join(folder, strconv.Itoa(os.Getpid())+".pcap")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, b, 24, "the header of a pcap file")
	assert.Equal(t, uint32(113), binary.LittleEndian.Uint32(b[20:]), "link type Linux cooked")
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	_, err = Driver{}.Open("soft-lo?capture=" + filepath.Join(t.TempDir(), "none", "trace.pcap"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A capture goes to a new file that only its user can read, wherever the name has led before.
func TestCaptureFileExists(t *testing.T) {
	dir := t.TempDir()
	path, linked := filepath.Join(dir, "trace.pcap"), filepath.Join(dir, "linked")
	require.NoError(t, os.WriteFile(path, []byte("earlier"), 0o666))
	require.NoError(t, os.Chmod(path, 0o666))
	require.NoError(t, os.Link(path, linked))
	reader, err := os.Open(path)
	require.NoError(t, err)
	defer reader.Close()
	d, err := Driver{}.Open("soft-lo?capture=" + path)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	info, err := os.Lstat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	assert.EqualValues(t, 24, info.Size())
	for _, r := range []io.Reader{reader, openFile(t, linked)} {
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		assert.Equal(t, "earlier", string(b), "the earlier file has nothing of the capture")
	}

	for name, make := range map[string]func(name string) error{
		"link":          func(name string) error { return os.Symlink(linked, name) },
		"dangling link": func(name string) error { return os.Symlink(filepath.Join(dir, "new"), name) },
		"directory":     func(name string) error { return os.Mkdir(name, 0o700) },
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, make(path))
		_, err := Driver{}.Open("soft-lo?capture=" + path)
		require.ErrorContains(t, err, "neither a regular file nor a named pipe", name)
	}
	assert.NoFileExists(t, filepath.Join(dir, "new"))
	b, err := io.ReadAll(openFile(t, linked))
	require.NoError(t, err)
	assert.Equal(t, "earlier", string(b))
}

func openFile(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestCaptureOfNoDevice: a device that cannot be opened neither changes an earlier capture
// file nor creates one.
func TestCaptureOfNoDevice(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer c.Close()
	old, none := filepath.Join(t.TempDir(), "old.pcap"), filepath.Join(t.TempDir(), "none.pcap")
	require.NoError(t, os.WriteFile(old, []byte("earlier"), 0o600))
	for _, path := range []string{old, none} {
		_, err = Driver{}.Open("soft-" + c.LocalAddr().String() + "?capture=" + path)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
	}
	b, err := os.ReadFile(old)
	require.NoError(t, err)
	assert.Equal(t, "earlier", string(b))
	assert.NoFileExists(t, none)
}

// TestCaptureBehindOthers opens a device whose first choices of an address are in use. The
// capture is started only once.
func TestCaptureBehindOthers(t *testing.T) {
	for range 2 {
		d, err := Open(Config{})
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
	}
	var b bytes.Buffer
	d, err := Open(Config{Capture: &b})
	require.NoError(t, err)
	require.NoError(t, d.Close())
	assert.Len(t, b.Bytes(), 24, "one header of a pcap file")
}

type brokenWriter struct{}

var errBroken = errors.New("broken")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestCaptureFails(t *testing.T) {
	_, err := Open(Config{Capture: brokenWriter{}})
	require.ErrorIs(t, err, errBroken)
}

// TestProtectionDomainsDevice: Device returns the same value that Open returned, so that the
// two can be compared.
func TestProtectionDomainsDevice(t *testing.T) {
	d, err := Open(Config{})
	require.NoError(t, err)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	assert.True(t, pd.Device() == verbs.Device(d))
	assert.True(t, d.DefaultPD().Device() == verbs.Device(d))
	require.NoError(t, pd.Close())
	require.NoError(t, d.Close())
}

// TestNothingElseIsPublic: a device has the methods of package verbs, those for faults, and
// String, and no exported field.
func TestNothingElseIsPublic(t *testing.T) {
	public := map[string]bool{"SetFaults": true, "SetPeerFaults": true, "String": true}
	for _, seam := range []reflect.Type{reflect.TypeFor[verbs.Device](), reflect.TypeFor[verbs.ClosingDevice](), reflect.TypeFor[verbs.CMDevice](), reflect.TypeFor[verbs.XRCDevice](), reflect.TypeFor[optional.MemoryDevice]()} {
		for i := range seam.NumMethod() {
			public[seam.Method(i).Name] = true
		}
	}
	d := reflect.TypeFor[*Device]()
	for i := range d.NumMethod() {
		assert.True(t, public[d.Method(i).Name], "%s is public", d.Method(i).Name)
	}
	for i := range d.Elem().NumField() {
		f := d.Elem().Field(i)
		assert.False(t, f.IsExported() || f.Anonymous, "%s is public", f.Name)
	}
}

// TestInterfaceOfZone: the zone of a link-local address says which interface is
// meant.
func TestInterfaceOfZone(t *testing.T) {
	addr := netip.MustParseAddr("fe80::1")
	i := networkInterface{Interface: net.Interface{Name: "eth0"}, addresses: []netip.Addr{addr}}
	assert.True(t, i.has(addr))
	assert.True(t, i.has(addr.WithZone("eth0")))
	assert.False(t, i.has(addr.WithZone("eth1")))
}

func TestDevices(t *testing.T) {
	list, err := Driver{}.Devices()
	require.NoError(t, err)
	found := false
	for _, i := range list {
		assert.Equal(t, "soft", i.Driver)
		if i.Name == "soft-lo" {
			found = true
		}
	}
	assert.True(t, found || runtime.GOOS != "linux", "soft-lo is not among %v", list)
}

func TestSetFaults(t *testing.T) {
	d, err := Open(Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	require.NoError(t, d.SetFaults(Faults{Loss: 0.5}))
	for _, bad := range []Faults{{Corrupt: 1.5}, {Delay: -1}, {Delay: time.Hour}, {Rate: -1}} {
		require.ErrorIs(t, d.SetFaults(bad), verbs.ErrInvalid)
		require.ErrorIs(t, d.SetPeerFaults(netip.MustParseAddr("127.0.0.2"), bad), verbs.ErrInvalid)
	}
	require.NoError(t, d.SetPeerFaults(netip.MustParseAddr("127.0.0.2"), Faults{Loss: 1, Delay: time.Minute, Rate: 1}))
	for _, addr := range []netip.Addr{{}, netip.IPv4Unspecified(), netip.MustParseAddr("ff02::1")} {
		require.ErrorIs(t, d.SetPeerFaults(addr, Faults{Loss: 1}), verbs.ErrInvalid)
	}
	require.NoError(t, d.SetFaults(Faults{}))
}

// The number of addresses tried does not grow with the number of devices.
func TestAttemptsDoNotGrowWithDevices(t *testing.T) {
	const devices = 20_000
	taken := make(map[netip.Addr]bool)
	most, all := 0, 0
	for range devices {
		attempts := 0
		d, err := openFirst(func(addr netip.Addr) (*Device, error) {
			require.True(t, addr.IsLoopback())
			attempts++
			if taken[addr] {
				return nil, syscall.EADDRINUSE
			}
			taken[addr] = true
			return new(Device), nil
		})
		require.NoError(t, err)
		require.NotNil(t, d, "there are free addresses")
		most, all = max(most, attempts), all+attempts
	}
	require.LessOrEqual(t, most, firstLoopbacks+randomLoopbacks)
	require.LessOrEqual(t, all, devices*(firstLoopbacks+2))
}

// If no address is free, or only the first is local, the device takes another port.
func TestNoLoopbackAddressIsFree(t *testing.T) {
	for _, refusal := range []error{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL} {
		d, err := openFirst(func(netip.Addr) (*Device, error) { return nil, refusal })
		require.NoError(t, err)
		require.Nil(t, d)
	}
	_, err := openFirst(func(netip.Addr) (*Device, error) { return nil, syscall.EACCES })
	require.ErrorIs(t, err, syscall.EACCES)
}

// Many devices at once: each has its own address and the standard port.
func TestManyDevices(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all of 127.0.0.0/8")
	}
	seen := make(map[verbs.GID]bool)
	for range 50 {
		d, err := Open(Config{MaxShards: 1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		table, err := d.GIDs(1)
		require.NoError(t, err)
		require.EqualValues(t, 4791, table[0].UDPPort)
		for _, g := range table {
			require.False(t, g.SharesPort, "%v: slots are for devices without an address of their own", g.GID)
		}
		require.False(t, seen[table[0].GID])
		seen[table[0].GID] = true
	}
}

// A device knows the broadcast addresses of the networks that its host is in.
func TestBroadcastsOfTheHost(t *testing.T) {
	d, err := Open(Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	list, err := interfaces()
	require.NoError(t, err)
	if len(list[0].broadcasts) == 0 {
		t.Skip("no interface is in a network that has one")
	}
	for _, addr := range list[0].broadcasts {
		_, err := d.DefaultPD().CreateAH(verbs.AddressAttr{DGID: verbs.GIDFromAddr(addr), Port: 1})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, "broadcast address of a network of this host")
	}
}

func TestFaultsOfNames(t *testing.T) {
	cfg, _, err := parseOptions("loss=0.1&delay=5ms&rate=1000&seed=3")
	require.NoError(t, err)
	require.Equal(t, Faults{Loss: 0.1, Delay: 5 * time.Millisecond, Rate: 1000, Seed: 3}, cfg.Faults)
}
