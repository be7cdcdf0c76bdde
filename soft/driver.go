package soft

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/verbena-rdma/verbena/soft/internal/roce"
	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

const prefix = "soft-"

// prefixWithoutDash begins names with underscores in place of dashes. libverbena gives them to
// programs, some of which take a dash for the beginning of something else.
const prefixWithoutDash = "soft_"

// Driver finds and opens software devices by name; see the package comment for
// the names.
type Driver struct {
	// Log is where the devices log. The zero value is silent.
	Log zerolog.Logger
}

// Name implements [verbs.Driver].
func (Driver) Name() string { return "soft" }

// Devices implements [verbs.Driver]: one device for every network interface that
// is up and has an address.
func (Driver) Devices() ([]verbs.DeviceInfo, error) {
	list, err := interfaces()
	if err != nil {
		return nil, err
	}
	var infos []verbs.DeviceInfo
	for _, i := range list {
		infos = append(infos, verbs.DeviceInfo{Name: prefix + i.Name, Driver: "soft", GUID: i.guid(), Interface: i.Name})
	}
	return infos, nil
}

// Open implements [verbs.Driver].
func (v Driver) Open(name string) (verbs.Device, error) {
	cfg, capture, err := parseName(name)
	if err != nil {
		return nil, err
	}
	cfg.Log = v.Log
	if capture == "" {
		return opened(Open(cfg))
	}
	// So that the processes of one command, such as mpirun, each get a file.
	file := &captureFile{path: strings.ReplaceAll(capture, "{pid}", strconv.Itoa(os.Getpid()))}
	cfg.Capture = file
	d, err := Open(cfg)
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	d.capture = file
	return d, nil
}

// Description is what is known of a device that is not open.
type Description struct {
	Interface string // the network interface behind it
	GUID      uint64 // node GUID, host byte order
	EFA       bool   // Config.EFA
	// GIDs is the GID table if no other device has its addresses and ports.
	GIDs []verbs.GIDEntry
	// Counters are those of the device when it has just been opened.
	Counters []verbs.Counter
}

// Describe describes a device that need not be open. For a name with a wrong option, or for an
// interface or address that this machine does not have, it returns the error that Open would return.
// It opens nothing: a port that another program has, or a capture file that cannot be created, is no
// error here.
func (Driver) Describe(name string) (Description, error) {
	cfg, _, err := parseName(name)
	if err != nil {
		return Description{}, err
	}
	if err := faults.Check(cfg.Faults); err != nil {
		return Description{}, fmt.Errorf("open device %q: %w: %w", name, err, verbs.ErrInvalid)
	}
	i, err := cfg.find()
	if err != nil {
		return Description{}, err
	}
	d := Description{Interface: i.Name, GUID: i.guid(), EFA: cfg.EFA, Counters: roce.ZeroCounters()}
	addresses := []netip.AddrPort{cfg.Address}
	if !cfg.Address.IsValid() {
		addresses = i.defaultAddresses()
	}
	for n, a := range addresses {
		d.GIDs = append(d.GIDs, verbs.GIDEntry{
			Index: n, GID: verbs.GIDFromAddr(a.Addr().WithZone("")), Type: verbs.GIDRoCEv2, Interface: i.Name, UDPPort: cmp.Or(a.Port(), wire.UDPPort),
		})
	}
	return d, nil
}

// parseName returns the configuration for a device name, and the name of its capture file.
func parseName(name string) (cfg Config, capture string, err error) {
	place, options, _ := strings.Cut(name, "?")
	place, ours := strings.CutPrefix(place, prefix)
	interfaceName := func(ifi string) string { return ifi }
	if !ours {
		place, ours = strings.CutPrefix(place, prefixWithoutDash)
		interfaceName = withDashes
	}
	if !ours || place == "" {
		return cfg, "", fmt.Errorf("open device %q: the name of a software device is %s followed by an interface or an address: %w", name, prefix, verbs.ErrNoDevice)
	}
	if cfg, capture, err = parseOptions(options); err != nil {
		return cfg, "", fmt.Errorf("open device %q: %w", name, err)
	}
	if addr, err := netip.ParseAddrPort(place); err == nil { // first: a zone could hold the port
		cfg.Address = netip.AddrPortFrom(withZone(addr.Addr(), interfaceName), addr.Port())
	} else if addr, err := netip.ParseAddr(strings.Trim(place, "[]")); err == nil {
		cfg.Address = netip.AddrPortFrom(withZone(addr, interfaceName), wire.UDPPort)
	} else {
		cfg.Interface = interfaceName(place)
	}
	return cfg, capture, nil
}

func withZone(addr netip.Addr, interfaceName func(string) string) netip.Addr {
	if addr.Zone() == "" {
		return addr
	}
	return addr.WithZone(interfaceName(addr.Zone()))
}

// withDashes returns the name of the interface that has this one if its dashes are underscores. An
// interface of this very name goes first.
func withDashes(name string) string {
	list, err := net.Interfaces()
	if err != nil || slices.ContainsFunc(list, func(i net.Interface) bool { return i.Name == name }) {
		return name
	}
	for _, i := range list {
		if strings.ReplaceAll(i.Name, "-", "_") == name {
			return i.Name
		}
	}
	return name
}

// opened converts a nil *Device to a nil verbs.Device.
func opened(d *Device, err error) (verbs.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

func parseOptions(query string) (cfg Config, capture string, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return cfg, "", fmt.Errorf("options %q: %w: %w", query, err, verbs.ErrInvalid)
	}
	options := map[string]func(value string) error{
		"loss":         option(&cfg.Faults.Loss, probability, "is not a probability from 0 to 1"),
		"duplicate":    option(&cfg.Faults.Duplicate, probability, "is not a probability from 0 to 1"),
		"reorder":      option(&cfg.Faults.Reorder, probability, "is not a probability from 0 to 1"),
		"corrupt":      option(&cfg.Faults.Corrupt, probability, "is not a probability from 0 to 1"),
		"mark":         option(&cfg.Faults.Mark, probability, "is not a probability from 0 to 1"),
		"delay":        option(&cfg.Faults.Delay, duration, "is not a duration such as 5ms"),
		"rate":         option(&cfg.Faults.Rate, positive, "is not a positive number of bytes per second"),
		"seed":         option(&cfg.Faults.Seed, seed, "is not a number from 0 to 2^64-1"),
		"srd_seed":     option(&cfg.SRDSeed, seed, "is not a number from 0 to 2^64-1"),
		"capture":      option(&capture, fileName, "is not the name of a file"),
		"segmentation": option(&cfg.DisableSegmentation, off, "is neither on nor off"),
		"coalescing":   option(&cfg.DisableCoalescing, off, "is neither on nor off"),
		"batch":        option(&cfg.DisableBatch, off, "is neither on nor off"),
		"congestion":   option(&cfg.CongestionControl, on, "is neither on nor off"),
		"efa":          option(&cfg.EFA, on, "is neither on nor off"),
		"local":        option(&cfg.DisableLocal, off, "is neither on nor off"),
		"shards":       option(&cfg.MaxShards, positive, "is not a positive number"),
		"spin":         option(&cfg.Spin, spin, "is neither off nor a duration such as 50us"),
	}
	for name, list := range values {
		if set := options[name]; set != nil {
			err = set(list[len(list)-1])
		} else {
			err = fmt.Errorf("unknown option; the options are %s", strings.Join(slices.Sorted(maps.Keys(options)), ", "))
		}
		if err != nil {
			return cfg, "", fmt.Errorf("option %q: %w: %w", name, err, verbs.ErrInvalid)
		}
	}
	return cfg, capture, nil
}

// option returns a function that sets *p to a value that parse accepts. Of others its error says
// what is wrong.
func option[T any](p *T, parse func(string) (T, bool), wrong string) func(value string) error {
	return func(value string) error {
		v, ok := parse(value)
		if !ok {
			return fmt.Errorf("%q %s", value, wrong)
		}
		*p = v
		return nil
	}
}

func probability(s string) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && v >= 0 && v <= 1
}

func duration(s string) (time.Duration, bool) {
	d, err := time.ParseDuration(s)
	return d, err == nil
}

func positive(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 1
}

func seed(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 0, 64)
	return n, err == nil
}

func fileName(s string) (string, bool) { return s, s != "" }

func on(s string) (bool, bool) { return s == "on", s == "on" || s == "off" }

func off(s string) (bool, bool) { return s == "off", s == "on" || s == "off" }

func spin(s string) (time.Duration, bool) {
	if s == "off" {
		return -1, true
	}
	d, ok := duration(s)
	return d, ok && d > 0
}
